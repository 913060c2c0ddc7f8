"""Everything recorded, as typed runs and rounds; `repro.harness.frame` makes pandas frames of them.

Nothing is measured here. A file that cannot be read is one line that names it, and nothing is
shown: no number of a damaged file is mixed with others.
"""

import math
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any

from repro.gpipe.schedule.timeline import Timeline
from repro.harness.journal import NAME, Journal, Place, journals
from repro.harness.schema import Modelled, PlanEvent, RoundRecord, TrainRound, round_record
from repro.harness.spec import RunSpec, assigned, canonical, run_name
from repro.harness.statistics import Ratio, ratio
from repro.harness.vary import compared, differences

GIB = 2**30


def _median_of_steps(name: str) -> "cached_property[float]":
    return cached_property(lambda round_: _median(round_.values.get(name, ())))


def _median_of_rounds(name: str) -> "cached_property[float]":
    """NaN where one of a run's rounds lacks the number."""
    return cached_property(lambda run: _median([getattr(round_, name) for round_ in run.rounds]))


def _of_newest(name: str, otherwise: Any) -> Any:
    """A field of a run's newest record; what it is otherwise, where nothing was recorded."""
    return property(lambda run: run.newest.get(name, otherwise))


@dataclass(frozen=True, eq=False)
class Round:
    """One run in one round. A number is NaN where nothing was timed."""

    name: str  # `transformer-0003`
    values: Mapping[str, Any]  # the record as plain values; `record` is the same with types
    N: int
    commit: str  # of the code that measured it
    together: bool = False  # whether step i is of block i, as the steps of other runs are

    # Medians over the steps of the round.
    step_s = _median_of_steps("step_s")
    idle_over_total = _median_of_steps("bubble_idle_over_total")

    @cached_property
    def record(self) -> RoundRecord:
        return round_record(self.values)

    @property
    def throughput(self) -> float:
        return self.N / self.step_s

    @property
    def blocks(self) -> tuple[float, ...]:
        """Seconds of the step of each block; the median where the run was measured in turn."""
        return tuple(self.values["step_s"]) if self.together else (self.step_s,)

    @property
    def throughputs(self) -> tuple[float, ...]:
        return tuple(self.N / seconds for seconds in self.blocks)

    @property
    def losses(self) -> Sequence[float | None]:
        return self.values["loss"] if "step_s" in self.values else ()

    @property
    def loss(self) -> float:
        return _median(self.losses[-1:])

    @property
    def breakdown(self) -> dict[str, float]:
        shares = self.values.get("breakdown", {})
        return {part: math.nan if share is None else share for part, share in shares.items()}

    @property
    def modelled(self) -> Modelled | None:
        """What the cost model gave, of a simulated run."""
        return self.record.modelled if isinstance(self.record, TrainRound) else None


@dataclass(frozen=True, eq=False)
class Run:
    """One run of one experiment at one place, over all its rounds."""

    place: Place
    id: str
    group: str
    spec: RunSpec
    status: str  # "done", "planned", or with its reason: "skipped(needs a GPU)"
    rounds: tuple[Round, ...]  # the oldest first
    device: str = ""  # that the numbers are of; empty where nothing was computed
    differs_in: str = ""  # what tells it from other runs of its experiment, `vary.differences`

    machine = property(attrgetter("place.machine"))
    scale = property(attrgetter("place.scale"))
    experiment = property(attrgetter("place.experiment"))
    model = property(attrgetter("spec.model"))
    K = property(attrgetter("spec.K"))
    M = property(attrgetter("spec.M"))
    D = property(attrgetter("spec.D"))
    schedule = property(attrgetter("spec.schedule"))
    recompute = property(attrgetter("spec.recompute"))
    library = property(attrgetter("spec.library"))
    fidelity = property(attrgetter("spec.fidelity"))
    step_s = _median_of_rounds("step_s")
    throughput = _median_of_rounds("throughput")
    idle_over_total = _median_of_rounds("idle_over_total")
    unit = _of_newest("unit", "")  # of throughput
    labels = _of_newest("labels", {})  # what the model says of itself
    fit = _of_newest("fit", None)  # answer of a search for the largest model, see `schema.Fitted`

    @property
    def named(self) -> str:
        return run_name(self.id, self.fidelity, self.differs_in)

    @property
    def done(self) -> bool:
        return self.status == "done"

    @property
    def N(self) -> int:
        """Examples of a mini-batch; where a cost model chose it, the one that it chose."""
        modelled = self.newest.get("modelled")
        return modelled["batch"] if modelled else self.spec.N

    @property
    def in_turn(self) -> bool:
        """Whether a clock timed its steps while no other run was measured."""
        timed = self.spec.timed and self.spec.task == "train"
        return timed and not all(round_.together for round_ in self.rounds)

    @property
    def stopped(self) -> bool:
        """Whether a round stopped before its last block, since its ratios were decided."""
        return any(each.together and len(each.blocks) < self.spec.steps for each in self.rounds)

    @property
    def throughputs(self) -> dict[Hashable, tuple[float, ...]]:
        return {(self.place, round_.name): round_.throughputs for round_ in self.rounds}

    @property
    def training(self) -> str:
        training = self.spec.training
        if training is None:
            return ""
        return canonical(training.model_dump(mode="json", exclude_defaults=True))

    @cached_property
    def peak_gib_per_stage(self) -> tuple[float, ...]:
        read = (round_.values.get("peak_bytes") for round_ in reversed(self.rounds))
        return tuple(peak / GIB for peak in next(filter(None, read), ()))

    @property
    def peak_gib_max(self) -> float:
        return max(self.peak_gib_per_stage, default=math.nan)

    @property
    def commit(self) -> str:
        return ", ".join(dict.fromkeys(round_.commit for round_ in self.rounds))

    @property
    def balance(self) -> tuple[int, ...]:
        """Layers of each stage; empty where nothing was recorded."""
        return tuple(self.newest.get("balance", ()))

    @property
    def cut_by(self) -> str:
        """The rule that the balance comes from: `time`, or `flops, cumulative-share`."""
        if not isinstance(self.spec.balance, str):
            return "given"
        return ", ".join(filter(None, (self.spec.balance, self.spec.partitioner)))

    @property
    def size(self) -> str:
        """What a fit chose of the model's arguments, such as `L=24`."""
        if self.fit is None:
            return ""
        if not (largest := self.fit["largest"]):
            return "nothing fits"
        given = self.spec.model_args
        chosen = {name: value for name, value in largest["args"].items() if name not in given}
        return assigned(chosen) or "as given"

    @property
    def parameters(self) -> float:
        largest = self.fit and self.fit["largest"]
        return float(largest["parameters"]) if largest else math.nan

    @property
    def newest(self) -> Mapping[str, Any]:
        return self.rounds[-1].values if self.rounds else {}


# Compared as objects, so that what is costly to compute from results can be kept for them.
@dataclass(frozen=True, eq=False)
class Results:
    """What a results folder holds: every recorded or planned run, and the journals."""

    runs: list[Run]
    journals: list[Journal]
    _timelines: dict[Run, Timeline | None] = field(default_factory=dict)  # read so far

    @cached_property
    def listings(self) -> dict[str, PlanEvent]:
        """Experiment -> its newest plan; of several places the last one's."""
        return {each.place.experiment: each.about for each in self.journals if each.about}

    @cached_property
    def by_experiment(self) -> dict[str, list[Run]]:
        """Experiment -> its runs, in the order of `runs`."""
        of: dict[str, list[Run]] = {}
        for run in self.runs:
            of.setdefault(run.experiment, []).append(run)
        return of

    @cached_property
    def machines(self) -> set[str]:
        return {journal.place.machine for journal in self.journals}

    def where(self, run: Run) -> str:
        """The scale that a run was measured at, and the machine where there are several."""
        return f"{run.scale} on {run.machine}" if len(self.machines) > 1 else run.scale

    @cached_property
    def _baselines(self) -> dict[tuple[Place, str], Run]:
        """The first run of each place with given settings, by what it has in common with others."""
        return {(run.place, compared(run.spec)): run for run in reversed(self.runs)}

    def baseline(self, run: Run, **changed: Any) -> Run | None:
        """The run at the same place that differs in the changed fields alone (`vary.compared`)."""
        return self._baselines.get((run.place, compared(run.spec, **changed)))

    def ratio(self, run: Run, base: Run) -> Ratio:
        """Throughput of a run over that of another, inside common blocks (`statistics.ratio`)."""
        stopped = run.stopped or base.stopped
        return ratio(run.throughputs, base.throughputs, stopped=stopped)

    def speedup(self, run: Run, **changed: Any) -> tuple[float, float, float]:
        """Throughput over a baseline's with its interval; a baseline has none over itself."""
        base = self.baseline(run, **changed)
        if base is None:
            return math.nan, math.nan, math.nan
        value, low, high, _ = self.ratio(run, base)
        return (value, math.nan, math.nan) if base is run else (value, low, high)

    def timeline(self, run: Run) -> Timeline | None:
        """The spans of the median step in a run's newest round; None when none was recorded."""
        if run not in self._timelines:
            found = (each.timeline(run.id) for each in self.journals if each.place == run.place)
            self._timelines[run] = next(found, None)
        return self._timelines[run]

    def chrome_trace(self, runs: Iterable[Run]) -> dict[str, Any]:
        """A Chrome trace (ui.perfetto.dev): a process for each of these runs with a timeline."""
        events: list[dict[str, Any]] = []
        for run in runs:
            timeline = self.timeline(run) if run.done else None
            if timeline is not None:
                events += timeline.to_chrome(run.named, pid=len(events))["traceEvents"]
        return {"traceEvents": events, "displayTimeUnit": "ms"}


def load_recorded(results: Path) -> Results:
    recorded = load(results)
    if not recorded.runs:
        what = "nothing is recorded there" if results.is_dir() else "there is no such folder"
        deeper = next(results.glob(f"*/*/*/*/{NAME}"), None)
        remedy = f"give --results {deeper.parents[3]}, or measure" if deeper else "measure"
        raise ValueError(
            f"results = '{results}': {what}; {remedy} something first, such as: repro run table2 "
            f"--scale smoke --results {results}"
        )
    return recorded


def load(results: Path) -> Results:
    """Everything recorded under a folder, except under a `reference` folder inside it."""
    return of_journals(journals(results))


def of_journals(found: list[Journal]) -> Results:
    runs: list[Run] = []
    for journal in found:
        differs_in = differences({run: journal.spec(run) for run in journal.runs})
        runs += [run_of(journal, run, differs_in[run]) for run in journal.runs]
    return Results(runs, found)


def run_of(journal: Journal, run: str, differs_in: str) -> Run:
    spec, recorded = journal.spec(run), journal.rounds_of(run)
    device = ""
    if spec.fidelity == "simulated":
        # A simulated step is of its profile's device; of none where layers say what they take.
        device = spec.profile or ""
    elif recorded and journal.about:
        device = journal.about.identity.get("device", "")
    rounds = []
    for event in recorded:
        values = event.records[run]
        N = (values.get("modelled") or {}).get("batch") or spec.N
        together = run in event.together
        rounds.append(Round(event.round, values, N, event.commit, together))
    status = str(journal.status(run))
    return Run(
        journal.place, run, journal.runs[run], spec, status, tuple(rounds), device, differs_in
    )


def _median(values: Sequence[float | None]) -> float:
    """The median; NaN of nothing, or where a number was not finite, which is recorded as null."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known and len(known) == len(values) else math.nan
