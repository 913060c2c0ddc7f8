"""Behind part (d) of the costs: single stages on a GPU, and what re-materialization costs there."""

from dataclasses import dataclass

from experiments.costs.cells import on_gpus
from experiments.costs.runs import NAME
from repro.harness.results import Results, Run
from repro.harness.schema import CalibrateRound
from repro.report.compare import matching, where
from repro.report.grid import Cell, Column, declared, estimate, milliseconds, plain, quotient
from repro.report.ratio import Ratio, over
from repro.report.style import model_name
from repro.report.table import Table
from repro.simulate import StageCosts

KINDS = ("forward", "recompute", "backward")


@dataclass(frozen=True)
class StageTime:
    """Seconds of one micro-batch on one stage, by its layers measured one by one and simulated."""

    run: Run
    stage: int
    measured: StageCosts
    simulated: StageCosts

    def seconds(self, kind: str) -> tuple[float, float]:
        """Measured and simulated; kind is one of `KINDS`."""
        return getattr(self.measured, kind)[self.stage], getattr(self.simulated, kind)[self.stage]


def stages(results: Results) -> Table:
    lines = []
    for measured, simulated in on_gpus(results):
        timed = next((run for run in measured if run.spec.task == "calibrate"), None)
        for run in simulated:
            modelled = run.rounds[-1].modelled
            if run.K > 1 and timed is not None and modelled is not None:
                costs = _measured_stages(timed, run)
                lines += [StageTime(run, stage, costs, modelled.stages) for stage in range(run.K)]
    columns: list[Column[StageTime]] = [
        Column("where", lambda line: plain(where(results, line.run))),
        Column("model", lambda line: plain(model_name(line.run.model))),
        Column("stage", lambda line: plain(line.stage)),
    ]
    for kind, letter in zip(KINDS, "FRB", strict=True):
        columns += _columns_of(kind, letter)
    note = (
        "One micro-batch at M=32. Measured is the sum of the stage's layers, timed one by one, so "
        "that what overlaps between layers is not in it; simulated is the profile's roofline."
    )
    title = "Single stages on a GPU: measured layers against the profile"
    return declared("costs_stages", title, note, lines, columns, NAME)


def _columns_of(kind: str, letter: str) -> list[Column[StageTime]]:
    def error(line: StageTime) -> Cell:
        measured, simulated = line.seconds(kind)
        percent = 100 * (simulated / measured - 1)
        return Cell(percent, format(percent, "+.0f"))

    return [
        Column((f"{letter} (ms)", "measured"), lambda line: milliseconds(line.seconds(kind)[0])),
        Column((f"{letter} (ms)", "simulated"), lambda line: milliseconds(line.seconds(kind)[1])),
        Column((f"{letter} (ms)", "error (%)"), error),
    ]


def _measured_stages(timed: Run, run: Run) -> StageCosts:
    record = timed.rounds[-1].record
    assert isinstance(record, CalibrateRound)
    calibration = record.calibration
    return calibration.stages(run.rounds[-1].record.balance, run.N // run.M)


def _share(ratio: Ratio) -> Cell:
    """The part of the step that is not there without recomputation, in percent."""
    shares = [100 * (1 - end) for end in (ratio.value, ratio.high, ratio.low)]
    return estimate((shares[0], shares[1], shares[2]), ".1f")


def recomputation(results: Results) -> Table:
    """The same step with and without re-materialization, on one GPU."""
    lines = []
    for measured, _ in on_gpus(results):
        lines += [run for run in matching(measured, remat="always") if run.spec.task == "train"]

    def without(run: Run) -> Ratio:
        """Throughput over that of the same run that keeps its activations."""
        return over(results, run, checkpoint="never")

    columns: list[Column[Run]] = [
        Column("where", lambda run: plain(where(results, run))),
        Column("model", lambda run: plain(model_name(run.model))),
        Column("M", lambda run: plain(run.M)),
        Column("throughput over never recomputed", lambda run: quotient(without(run))),
        Column("share of the step (%)", lambda run: _share(without(run))),
    ]
    note = (
        "K=1, everything equal but whether activations are recomputed. The paper has 22.5 % of a "
        "step, other sources a third of the computation; F:R:B = 1:1:2 would be a quarter."
    )
    title = "What re-materialization costs on a GPU"
    return declared("costs_recompute", title, note, lines, columns, NAME)
