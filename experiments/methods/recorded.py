"""The runs of the experiment methods by what they are compared in, for its tables and figures."""

from dataclasses import dataclass
from math import nan

from experiments.methods.runs import NAME
from repro.gpipe.schedule.actions import Schedule
from repro.harness.results import Results, Run
from repro.harness.schema import TrainRound
from repro.harness.statistics import interval
from repro.methods.named import name_of
from repro.report.compare import rows_of
from repro.report.ratio import ITSELF, Ratio
from repro.report.rounds import Spread

RECOMPUTED = {"always": ", recomputes", "except_last": ", recomputes all but the last"}


def method_of(run: Run) -> str:
    """The name of the method that a run uses, without what it recomputes."""
    spec = run.spec
    return name_of(
        library=spec.library,
        schedule=spec.schedule,
        K=spec.K,
        D=spec.D,
        tensor_parallel=spec.tensor_parallel,
        zero=spec.zero,
    )


def label_of(run: Run) -> str:
    """`gpipe, recomputes`."""
    return method_of(run) + RECOMPUTED.get(run.remat, "")


@dataclass(frozen=True)
class Compared:
    """A run beside the run of one device that it is divided by.

    Attributes:
        base: of the same model on one device, without recomputation; None where none is planned.
    """

    run: Run
    base: Run | None

    def ratio(self, results: Results) -> Ratio:
        """Throughput over that of one device, inside common rounds."""
        if self.base is None or not (self.base.done and self.run.done):
            return Ratio(nan, nan, nan, 0, "one device")
        if self.base is self.run:
            return Ratio(1.0, 1.0, 1.0, len(self.run.rounds), ITSELF)
        return Ratio(*results.ratio(self.run, self.base), baseline="one device")


@dataclass(frozen=True)
class Recomputing:
    """A run beside the one that recomputes nothing and is else the same."""

    run: Run
    never: Run | None


def compared(results: Results, group: str) -> list[Compared]:
    """The runs of a group in the order of the plan, each with the one of its model and place."""
    rows = rows_of(results, experiment=NAME, group=group)
    bases: dict[tuple[object, str], Run] = {}
    for run in rows:
        if method_of(run) == "single" and run.remat == "never":
            bases.setdefault(_work_of(run), run)
    return [Compared(run, bases.get(_work_of(run))) for run in rows]


def _work_of(run: Run) -> tuple[object, str]:
    """Equal for runs of the same model at the same place."""
    return run.place, str(sorted(run.spec.model_args.items()))


def sent_bytes(run: Run) -> float:
    """Bytes that the process which sends most sends in a step; NaN where nobody counted them."""
    for round_ in reversed(run.rounds):
        record = round_.record
        if isinstance(record, TrainRound) and record.sent_bytes:
            return max(sum(kinds.values()) for kinds in record.sent_bytes)
    return nan


def staleness(run: Run) -> list[int]:
    """Of each stage, how many updates old the weights are; empty of a synchronous method."""
    for round_ in reversed(run.rounds):
        record = round_.record
        if isinstance(record, TrainRound) and record.staleness is not None:
            return record.staleness
    return []


def stashed_bytes(run: Run) -> float:
    """Bytes of older weights that the stage which keeps most of them keeps; NaN where none does."""
    for round_ in reversed(run.rounds):
        record = round_.record
        if isinstance(record, TrainRound) and record.stashed_bytes is not None:
            return max(record.stashed_bytes)
    return nan


def losses(run: Run) -> list[float]:
    """The loss of each timed step of the newest round; NaN where it was not finite."""
    record = run.rounds[-1].record if run.rounds else None
    if not isinstance(record, TrainRound):
        return []
    return [nan if loss is None else loss for loss in record.loss]


def extra_time(results: Results, run: Run, base: Run) -> Spread:
    """How much longer a step takes than that of another run, as a share, inside common rounds."""
    value, low, high, _ = results.ratio(base, run)
    return value - 1, low - 1, high - 1


def recompute_share(run: Run) -> Spread:
    """Share of K x step that is spent in recomputation, over rounds."""
    return interval([round_.breakdown.get("recompute", nan) for round_ in run.rounds])


def kept_micro_batches(schedule: Schedule) -> float:
    """The greatest number of micro-batches that a rank keeps between F and B, or W.

    Where a rank holds several stages, a micro-batch on one of them counts as its part of the rank's
    layers.
    """
    most = 0
    for rank in schedule.ranks:
        kept = 0
        for action in rank:
            if action.kind == "F":
                kept += 1
            elif action.kind in ("B", "W"):  # a schedule has one of them
                kept -= 1
            most = max(most, kept)
    return most / schedule.stages_per_rank
