"""Everything recorded, as typed runs and rounds, and as data frames made from them.

Nothing is measured here. A file that cannot be read is one line that names it, and nothing is
shown: a number that is not whole never stands among others.
"""

import math
import statistics
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repro.gpipe.schedule import collector
from repro.gpipe.schedule.timeline import Timeline
from repro.harness.journal import Journal, Place, journals
from repro.harness.schema import (
    FitRound,
    Modelled,
    PlanEvent,
    RoundEvent,
    RoundRecord,
    TrainRound,
    round_record,
)
from repro.harness.spec import TIMED, RunSpec, canonical, run_name
from repro.harness.statistics import ratio
from repro.harness.vary import compared, differences
from repro.io.untrusted import did_you_mean, short

if TYPE_CHECKING:
    import pandas as pd

GIB = 2**30
_MOST_LISTED = 5  # runs in a message
SPEEDUPS: dict[str, dict[str, int]] = {
    "speedup_vs_k1": {"K": 1},
    "speedup_vs_k2m1": {"K": 2, "M": 1},
}
# Columns of `Results.rows` that are fields of a spec and hardly ever differ.
SETTINGS = (
    "task",
    "seed",
    "warmup",
    "steps",
    "trace",
    "transport",
    "profile",
    "figures",
    "memory",
    "stretch",
    "stages_per_rank",
    "tensor_parallel",
    "zero",
    "shared",
)


@dataclass(frozen=True, eq=False)
class Round:
    """One run in one round.

    Attributes:
        name: `transformer-0003`.
        values: the record as plain values; `record` is the same with types.
        N: examples of a mini-batch.
        commit: of the code that measured it.
        load: share of the usable cores that other processes took meanwhile; NaN where it was not
            recorded, and for runs that no clock times.
        shared: whether processes shared devices, so that no time counts, see `RunSpec.shared`.
    """

    name: str
    values: Mapping[str, Any]
    N: int
    commit: str
    load: float = math.nan
    shared: bool = False

    @cached_property
    def record(self) -> RoundRecord:
        return round_record(self.values)

    @cached_property
    def step_s(self) -> float:
        """Median seconds of the round's steps; NaN where none was timed."""
        return self._median_of("step_s")

    @property
    def throughput(self) -> float:
        """Examples per second."""
        return self.N / self.step_s

    @cached_property
    def bubble_idle_over_total(self) -> float:
        """Median share of K x step in which a stage does nothing."""
        return self._median_of("bubble_idle_over_total")

    @cached_property
    def bubble_idle_over_work(self) -> float:
        """The same idle time over the busy time."""
        return self._median_of("bubble_idle_over_work")

    @property
    def losses(self) -> Sequence[float | None]:
        """Loss of each step; None where it was not finite, and nothing without steps."""
        return self.values["loss"] if self._steps else ()

    @property
    def loss(self) -> float:
        """Loss of the last step."""
        return _median(self.losses[-1:])

    @property
    def breakdown(self) -> dict[str, float]:
        """Part -> share of K x step; empty without a trace."""
        if self.shared or not self._steps:
            return {}
        shares = self.values["breakdown"]
        return {part: math.nan if share is None else share for part, share in shares.items()}

    @property
    def modelled(self) -> Modelled | None:
        """What the cost model gave, of a simulated or emulated run."""
        return self.record.modelled if isinstance(self.record, TrainRound) else None

    @property
    def _steps(self) -> bool:
        """Whether it is about timed, emulated or simulated steps."""
        return "step_s" in self.values

    def _median_of(self, name: str) -> float:
        return math.nan if self.shared or not self._steps else _median(self.values[name])


@dataclass(frozen=True, eq=False)
class Run:
    """One run of one experiment at one place, over all its rounds.

    Attributes:
        place: machine, scale and experiment.
        id: of the run.
        group: that it belongs to.
        spec: what was asked for.
        status: "done", "planned", or with its reason: "skipped(needs a GPU)".
        rounds: the oldest first.
        device: that the numbers are of; empty where nothing was computed.
        differs_in: what tells it from other runs of its experiment, `vary.differences`.
    """

    place: Place
    id: str
    group: str
    spec: RunSpec
    status: str
    rounds: tuple[Round, ...]
    device: str = ""
    differs_in: str = ""

    @property
    def named(self) -> str:
        """The id with the fidelity, unless that is "measured", and with `differs_in`."""
        fidelity = "" if self.fidelity == "measured" else self.fidelity
        return run_name(self.id, fidelity, self.differs_in)

    @property
    def done(self) -> bool:
        """Whether it has all its rounds."""
        return self.status == "done"

    machine = property(attrgetter("place.machine"))
    scale = property(attrgetter("place.scale"))
    experiment = property(attrgetter("place.experiment"))
    model = property(attrgetter("spec.model"))
    K = property(attrgetter("spec.K"))
    M = property(attrgetter("spec.M"))
    D = property(attrgetter("spec.D"))
    schedule = property(attrgetter("spec.schedule"))
    remat = property(attrgetter("spec.checkpoint"))
    library = property(attrgetter("spec.library"))
    fidelity = property(attrgetter("spec.fidelity"))

    @property
    def N(self) -> int:
        """Examples of a mini-batch; where a cost model chose it, the one that it chose."""
        modelled = self.rounds[-1].values.get("modelled") if self.rounds else None
        return modelled["batch"] if modelled else self.spec.N

    @property
    def training(self) -> str:
        """What a run of the task "learn" trains on, and how, as JSON; empty for other tasks."""
        training = self.spec.training
        if training is None:
            return ""
        return canonical(training.model_dump(mode="json", exclude_defaults=True))

    @cached_property
    def step_s(self) -> float:
        """Seconds of a step: median over rounds; NaN where none was timed."""
        return _median([round_.step_s for round_ in self.rounds])

    @cached_property
    def throughput(self) -> float:
        """Examples per second: median over rounds."""
        return _median([round_.throughput for round_ in self.rounds])

    @cached_property
    def bubble_idle_over_total(self) -> float:
        """Share of K x step in which a stage does nothing: median over rounds."""
        return _median([round_.bubble_idle_over_total for round_ in self.rounds])

    @cached_property
    def bubble_idle_over_work(self) -> float:
        """Idle time over busy time: median over rounds."""
        return _median([round_.bubble_idle_over_work for round_ in self.rounds])

    @cached_property
    def peak_gib_per_stage(self) -> tuple[float, ...]:
        """Peak memory of each stage in the newest round that read it; empty where none did."""
        for round_ in reversed(self.rounds):
            if peaks := round_.values.get("peak_bytes"):
                return tuple(peak / GIB for peak in peaks)
        return ()

    @property
    def peak_gib_max(self) -> float:
        """Peak memory of the fullest stage; NaN where nobody read it."""
        return max(self.peak_gib_per_stage, default=math.nan)

    @property
    def commit(self) -> str:
        """The commits whose code measured it."""
        return ", ".join(dict.fromkeys(round_.commit for round_ in self.rounds))

    @property
    def unit(self) -> str:
        """Of throughput; empty without rounds."""
        return self.rounds[-1].values["unit"] if self.rounds else ""

    @property
    def balance(self) -> tuple[int, ...]:
        """Layers of each stage; empty where nothing was recorded."""
        return tuple(self.rounds[-1].values["balance"]) if self.rounds else ()

    @property
    def cut_by(self) -> str:
        """The rule that the balance comes from: `time`, or `flops, cumulative-share`."""
        if not isinstance(self.spec.balance, str):
            return "given"
        return ", ".join(filter(None, (self.spec.balance, self.spec.partitioner)))

    @property
    def labels(self) -> dict[str, Any]:
        """What the model says of itself."""
        return self.rounds[-1].values["labels"] if self.rounds else {}

    @property
    def fit(self) -> FitRound | None:
        """The newest record of a search for the largest model."""
        record = self.rounds[-1].record if self.spec.task == "fit" and self.rounds else None
        return record if isinstance(record, FitRound) else None

    @property
    def size(self) -> str:
        """The largest model that fits, `L=24`; empty for other tasks."""
        if self.fit is None:
            return ""
        largest = self.fit.fit.largest
        return self.spec.chosen_arguments(largest.args) if largest else "nothing fits"

    @property
    def parameters(self) -> float:
        """Of the largest model that fits; NaN for other tasks."""
        largest = self.fit.fit.largest if self.fit else None
        return float(largest.parameters) if largest else math.nan


# Compared as objects, so that what is costly to compute from results can be kept for them.
@dataclass(frozen=True, eq=False)
class Results:
    """What a results folder holds.

    Attributes:
        runs: every recorded or planned run of every experiment.
        journals: of the experiments found.
    """

    runs: list[Run]
    journals: list[Journal]
    # read so far
    _timelines: dict[tuple[Place, str], Timeline | None] = field(default_factory=dict, repr=False)

    @cached_property
    def rows(self) -> "pd.DataFrame":
        """One row per run: seconds in step_s, examples per second in throughput, GiB in peak_gib_*.

        Unknown numbers are NaN. A name that ends in _ci_low or _ci_high is one end of the
        bootstrap 95 % interval of the quantity before it.
        """
        import pandas as pd

        return pd.DataFrame([self.row(run) for run in self.runs], columns=COLUMNS)

    @cached_property
    def rounds(self) -> "pd.DataFrame":
        """One line per run and round, the step as the median of the round's steps."""
        lines = [_round_row(run, round_) for run in self.runs for round_ in run.rounds]
        import pandas as pd

        return pd.DataFrame(lines, columns=ROUND_COLUMNS)

    @cached_property
    def listings(self) -> dict[str, PlanEvent]:
        """Experiment -> its newest plan; of several places the last one's."""
        abouts = {journal.place.experiment: journal.about for journal in self.journals}
        return {name: about for name, about in abouts.items() if about is not None}

    @cached_property
    def _by_place(self) -> dict[Place, Journal]:
        return {journal.place: journal for journal in self.journals}

    @cached_property
    def by_experiment(self) -> dict[str, list[Run]]:
        """Experiment -> its runs, in the order of `runs`."""
        of: dict[str, list[Run]] = {}
        for run in self.runs:
            of.setdefault(run.experiment, []).append(run)
        return of

    @cached_property
    def machines(self) -> set[str]:
        """Slugs of the machines that recorded them."""
        return {run.machine for run in self.runs}

    @cached_property
    def _baselines(self) -> dict[tuple[Place, Hashable], Run]:
        """The first run of each place with given settings, by what it has in common with others."""
        first: dict[tuple[Place, Hashable], Run] = {}
        for run in self.runs:
            first.setdefault((run.place, compared(run.spec)), run)
        return first

    def baseline(self, run: Run, **changed: Any) -> Run | None:
        """The run at the same place that differs in the changed fields alone (`vary.baseline`)."""
        return self._baselines.get((run.place, compared(run.spec, **changed)))

    def ratio(self, run: Run, base: Run) -> tuple[float, float, float, int]:
        """Throughput of a run over that of another, inside common rounds (`statistics.ratio`)."""
        return ratio(_throughputs(run), _throughputs(base))

    def speedup(self, run: Run, **changed: Any) -> tuple[float, float, float]:
        """Throughput over a baseline's with its interval; a baseline has none over itself."""
        base = self.baseline(run, **changed)
        if base is None:
            return math.nan, math.nan, math.nan
        value, low, high, _ = self.ratio(run, base)
        return (value, math.nan, math.nan) if base is run else (value, low, high)

    def timeline(self, run: Run) -> Timeline | None:
        """The spans of the median step in a run's newest round; None when none was recorded."""
        key = run.place, run.id
        if key not in self._timelines:
            journal = self._by_place.get(run.place)
            self._timelines[key] = journal.timeline(run.id) if journal else None
        return self._timelines[key]

    def chrome_trace(self, runs: Iterable[Run]) -> dict[str, Any]:
        """A Chrome trace (ui.perfetto.dev): a process for each of these runs with a timeline."""
        events: list[dict[str, Any]] = []
        for run in runs:
            timeline = self.timeline(run) if run.done else None
            if timeline is not None:
                name = run_name(run.id, run.fidelity, run.differs_in)
                events += timeline.to_chrome(name, pid=len(events))["traceEvents"]
        return {"traceEvents": events, "displayTimeUnit": "ms"}

    def row(self, run: Run) -> dict[str, Any]:
        """A run as a row of `rows`."""
        row = {
            "run": run.id,
            "rounds": len(run.rounds),
            "model_args": run.spec.model_args,
            "optimizer": run.spec.optimizer,
            "lr": run.spec.lr,
            "peak_gib_per_stage": run.peak_gib_per_stage or None,
            "balance": run.balance or None,
            **run.spec.model_dump(include=set(SETTINGS)),
        }
        for name, changed in SPEEDUPS.items():
            value, low, high = self.speedup(run, **changed)
            row |= {name: value, f"{name}_ci_low": low, f"{name}_ci_high": high}
        return {name: row[name] if name in row else getattr(run, name) for name in COLUMNS}


# fmt: off
COLUMNS = [
    "experiment", "run", "differs_in", "model", "model_args", "K", "M", "N", "D", "schedule",
    "remat", "optimizer", "lr", "fidelity", "device", "status", "step_s", "throughput",
    "speedup_vs_k1", "speedup_vs_k1_ci_low", "speedup_vs_k1_ci_high",
    "speedup_vs_k2m1", "speedup_vs_k2m1_ci_low", "speedup_vs_k2m1_ci_high",
    "bubble_idle_over_total", "bubble_idle_over_work", "peak_gib_max", "peak_gib_per_stage",
    "commit", "unit", "rounds", "balance", "cut_by", "labels", "library", "size", "parameters",
    "machine", "scale", "group", *SETTINGS, "training",
]
ROUND_COLUMNS = [
    "machine", "scale", "experiment", "group", "run", "round", "commit", "step_s", "throughput",
    "bubble_idle_over_total", "bubble_idle_over_work", "loss", "setup_s", "breakdown", "load",
]
# fmt: on


def _round_row(run: Run, round_: Round) -> dict[str, Any]:
    row = {"run": run.id, "round": round_.name, "setup_s": round_.values["setup_s"]}
    row |= {name: getattr(run, name) for name in ("machine", "scale", "experiment", "group")}
    return {name: row[name] if name in row else getattr(round_, name) for name in ROUND_COLUMNS}


def _throughputs(run: Run) -> dict[Hashable, float]:
    """Round -> throughput; rounds of different places never meet."""
    return {(run.place, round_.name): round_.throughput for round_ in run.rounds}


def check_folder(results: Path) -> None:
    """Raise a one-line ValueError where the results folder does not exist."""
    if not results.is_dir():
        beside = results.parent
        known = [path.name for path in beside.iterdir() if path.is_dir()] if beside.is_dir() else []
        raise ValueError(
            f"results = '{results}': there is no such folder; give the one that "
            f"`repro run --results` recorded into{did_you_mean(results.name, known)}"
        )


def load_recorded(results: Path) -> Results:
    """Everything recorded under a folder, for a command that needs some of it.

    Raises:
        ValueError: one line, if there is no such folder or nothing is recorded there.
    """
    check_folder(results)
    recorded = load(results)
    if not recorded.runs:
        reference = results / "reference"
        hint = f"; the committed results are in --results {reference}" if reference.is_dir() else ""
        raise ValueError(
            f"results = '{results}': nothing is recorded there; measure something first, such as: "
            f"repro run table2 --scale smoke --results {results}{hint}"
        )
    return recorded


def load(results: Path) -> Results:
    """Everything recorded under a folder, except under a `reference` folder inside it."""
    return of_journals(journals(results))


def find_run(text: str, results: Path) -> tuple[Results, Run]:
    """A recorded run, with the results of its experiment.

    Args:
        text: the run's id or the beginning of it, after as much of its place as tells it from
            others, such as `table2/transformer-K2`.
        results: where it is looked up, in the committed results inside it last.

    Raises:
        ValueError: one line, if it names no run, or several.
    """
    *place, start = text.strip("/").split("/")
    known: list[Run] = []
    for folder in (results, results / "reference"):
        loaded = load(folder)
        known += loaded.runs
        of_place = [run for run in loaded.runs if set(place) <= set(run.place)]
        matches = [run for run in of_place if run.id == start]
        matches = matches or [run for run in of_place if run.id.startswith(start)]
        if len(matches) > 1:
            raise ValueError(f"run = {short(text)}: {_several(matches)}")
        if matches:
            journal = next(each for each in loaded.journals if each.place == matches[0].place)
            return of_journals([journal]), matches[0]
    of_experiment = [run for run in known if run.experiment == start]
    if of_experiment:
        listed = _listed([run.id for run in of_experiment])
        raise ValueError(f"run = {short(text)}: is an experiment; name one of its runs: {listed}")
    ids = sorted({run.id for run in known})
    hint = f"; there is {_listed(ids)}" if ids else "; `repro run NAME` records some"
    raise ValueError(
        f"run = {short(text)}: no run below {results} has an id that begins so"
        f"{did_you_mean(start, ids) or hint}"
    )


def _several(matches: list[Run]) -> str:
    """Why these runs are not one, and what to give instead."""
    ids = {run.id: run.named for run in matches}
    if len(ids) > 1:
        return f"{len(ids)} ids begin so: {_listed([*ids.values()])}; give more of one"
    places = ["/".join((*run.place, run.id)) for run in matches]
    return (
        f"is recorded {len(places)} times, as {_listed(places)}; give as much as tells them apart"
    )


def _listed(texts: list[str]) -> str:
    """`a, b and 3 others`."""
    more = len(texts) - _MOST_LISTED
    return ", ".join(texts[:_MOST_LISTED]) + (f" and {more} others" if more > 0 else "")


@collector.paused()
def of_journals(found: list[Journal]) -> Results:
    return Results([run for journal in found for run in _runs(journal)], found)


def _runs(journal: Journal) -> Iterator[Run]:
    specs = {run: journal.spec(run) for run in journal.runs}
    differs_in = differences(specs)
    for run in specs:
        yield run_of(journal, run, differs_in[run])


def run_of(journal: Journal, run: str, differs_in: str = "") -> Run:
    """One run of a journal over all its rounds."""
    spec, recorded = journal.spec(run), journal.rounds_of(run)
    device = ""
    if spec.fidelity == "simulated":
        # A simulated step is of its profile's device; of none where layers say what they take.
        device = spec.profile or ""
    elif recorded and journal.about:
        device = journal.about.identity.get("device", "")
    rounds = tuple(_round(spec, each, each.records[run]) for each in recorded)
    return Run(
        journal.place,
        run,
        journal.runs[run],
        spec,
        str(journal.status(run)),
        rounds,
        device,
        differs_in,
    )


def _round(spec: RunSpec, event: RoundEvent, values: Mapping[str, Any]) -> Round:
    # Only what a clock times can be disturbed.
    load = event.load if spec.fidelity in TIMED else None
    modelled = values.get("modelled")
    N = (modelled and modelled["batch"]) or spec.N
    load = math.nan if load is None else load
    return Round(event.round, values, N, event.commit, load, shared=bool(spec.shared))


def _median(values: Sequence[float | None]) -> float:
    """The median; NaN of nothing, or where a number was not finite, which is recorded as null."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known and len(known) == len(values) else math.nan
