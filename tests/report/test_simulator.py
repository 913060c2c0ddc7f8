"""The simulator judged on made-up rounds: known calibrations, steps a known part off."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter
from recorded import MACHINE

from experiments.simulator import report as simulator
from experiments.simulator.simulated import judged_runs
from repro.gpipe.schedule.kinds import make_schedule
from repro.gpipe.schedule.timeline import Timeline
from repro.harness.job import Measured
from repro.harness.journal import Journal, Status
from repro.harness.results import Results, load
from repro.harness.schema import RoundRecord, round_record
from repro.harness.spec import Experiment, Group, RunSpec
from repro.report import figures
from repro.report.compare import rows_of
from repro.report.style import styled
from repro.report.table import Table
from repro.report.tables import all_tables
from repro.simulate import Calibration, StageCosts, settle, simulate

# seconds of F and R of each layer, alone; B takes twice as long, and together everything does
F = 0.01
OFF = (0.02, 0.05, 0.04, 0.06, 0.03)  # by how much the simulated step is too long, a round each
FREE = {"latency": 0.0, "bytes_per_second": None, "overlap": True}
BASE: dict[str, Any] = {"model": "transformer", "model_args": {"L": 2}, "K": 2}
TIMED = RunSpec(**BASE, M=2, N=4, task="calibrate", balance="uniform")
JUDGED = tuple(RunSpec(**BASE, M=M, N=8) for M in (1, 4))
KNOWN: dict[str, Any] = {
    "model": "timed",
    "model_args": {"L": 2},
    "K": 2,
    "M": 4,
    "N": 4,
    "balance": "uniform",
}
PAIR = tuple(RunSpec(**KNOWN, fidelity=fidelity) for fidelity in ("emulated", "simulated"))


def tables(factor: float) -> dict[str, Any]:
    return {
        name: [[factor * part * F] * 2]
        for name, part in (("forward", 1), ("recompute", 1), ("backward", 2))
    }


def calibration(alone: bool) -> dict[str, Any]:
    rest = {
        "sizes": [8],
        "update": [0.0, 0.0],
        "activations": [0.0],
        "gradients": [0.0],
        "link": FREE,
    }
    return {**tables(2), **rest, "alone": tables(1) if alone else None}


def line(steps: list[float], **more: Any) -> RoundRecord:
    bubble = {
        "bubble_idle_over_total": [0.1],
        "bubble_idle_over_work": [0.1],
        "breakdown": {},
        "peak_bytes": None,
    }
    about = {"balance": [1, 1], "setup_s": 0.1, "unit": "x/s", "labels": {}}
    steps_of = {"step_s": steps, "loss": [1.0] if steps else []}
    return round_record({**steps_of, **bubble, **about, **more})


def step(cost: Calibration, run: RunSpec) -> Timeline:
    """As the simulator has it."""
    schedule = make_schedule(run.schedule, run.K, run.M, run.checkpoint)
    return simulate(
        schedule,
        settle(schedule, lambda overlap: cost.stages((1, 1), 8 // run.M, overlap=overlap)),
    )


def recorded(
    path: Path, alone: bool = True, rounds: int = 5, without: tuple[RunSpec, ...] = ()
) -> Results:
    """Rounds of the experiment in which the step is what the simulator says over 1 + OFF."""
    groups = (
        Group(name="transformer", runs=(TIMED, *JUDGED)),
        Group(name="known-durations", runs=PAIR),
    )
    plan = Experiment(name="simulator", title="Right?", question="?", groups=groups)
    folder = Journal.of(path, MACHINE, "laptop", plan.name)
    ids = {
        run.run_id(1, MACHINE.identity): (group.name, run) for group in groups for run in group.runs
    }
    folder.plan(plan, MACHINE, accumulate=False)
    cost = TypeAdapter(Calibration).validate_python(calibration(alone))
    for number in range(rounds):
        found: dict[str, dict[str, Measured]] = {group.name: {} for group in groups}
        for name, (group, run) in ids.items():
            if run in without:
                continue
            if run.task == "calibrate":
                found[group][name] = Measured(line([], calibration=calibration(alone)))
            elif run.fidelity == "simulated":
                costs = StageCosts.uniform(2, F, F, 2 * F)
                modelled = {"batch": 4, "stages": costs.plain(), "rungs": {}}
                found[group][name] = Measured(line([1.0], modelled=modelled))
            elif run.fidelity == "emulated":
                found[group][name] = Measured(line([1 / (1 + OFF[number] / 10)]))
            else:
                timeline = step(cost, run)
                slower = 1 / (1 + OFF[number])
                rows = [
                    {**row, "start": slower * row["start"], "end": slower * row["end"]}
                    for row in timeline.to_rows()
                ]
                measured = Timeline.from_rows(rows, timeline.stages)
                found[group][name] = Measured(line([measured.step_time]), measured)
        for group, some in found.items():
            folder.commit(group, some, MACHINE, ("2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"))
    for name, (_, run) in ids.items():
        status = Status("failed", "stage 1 died") if run in without else Status("done")
        folder.set_status({name: status})
    return load(path)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return recorded(tmp_path_factory.mktemp("results"))


def only(results: Results) -> Table:
    (table,) = [table for table in all_tables(results) if table.name == "simulator"]
    return table


def test_errors_are_taken_inside_rounds(results):
    table = only(results)
    assert table.data is not None
    one, four, known = table.data.to_dict("records")
    column = "error over measured (%)"
    for found in (one, four):
        assert found[column, "mixed"] == pytest.approx(4)
        assert 1.999 < found[column, "mixed: low"] < 4 < found[column, "mixed: high"] < 6.001
        assert found[column, "alone"] <= 4 < found[column, "together"]
    assert known["error over emulated (%)", "known"] == pytest.approx(0.4)
    assert (known["step (ms)", "simulated"], known["", "model"]) == (1000, "known durations")


def test_with_m_1_timing_together_alone_is_what_is_off(results):
    # Alone F takes 10 and B 20 ms; together all take twice as long. Only R of the first stage and
    # F of the second run at the same time.
    one = next(judged for judged in judged_runs(results) if judged.run.M == 1)
    assert one.errors("together")[0] > 50
    assert abs(one.errors("mixed")[0]) < 3


def test_old_rounds_were_timed_together_only(tmp_path):
    table = only(recorded(tmp_path, alone=False))
    assert table.data is not None
    assert table.data["error over measured (%)", "together"].tolist()[0] == pytest.approx(4)
    assert table.shown["error over measured (%)", "mixed"].tolist()[0] == "-"


def test_what_is_missing_has_a_word(tmp_path):
    table = only(recorded(tmp_path, rounds=1, without=(TIMED, PAIR[0])))
    assert table.shown["", "rounds"].tolist() == [
        "no calibration",
        "no calibration",
        "failed(stage 1 died)",
    ]


def test_the_figure_has_a_dot_for_each_cell_and_nothing_generic(results, tmp_path):
    rows = rows_of(results, status="done")
    with styled():
        drawn = simulator.figure(results, rows)
        assert drawn is not None
        (axes,) = drawn.axes
        assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "4"]
        assert axes.get_title(loc="left").startswith("Transformer, K=2 (laptop")
        rounds = next(line for line in axes.get_lines() if line.get_label() == "a round")
        assert np.size(rounds.get_xdata()) == sum(
            len(judged.errors(judged.way)) for judged in judged_runs(results)[:2]
        )
        crosses = [
            line
            for line in axes.get_lines()
            if line.get_marker() == "x" and np.size(line.get_xdata())
        ]
        assert np.size(crosses[0].get_xdata()) == 2
    stems = [one.stem.name for one in figures.draw_all(results, tmp_path)]
    assert stems == ["simulator_error"]
