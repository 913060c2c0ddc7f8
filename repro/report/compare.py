"""Ratios between recorded runs, each with its baseline and interval, and the ideal that belongs to it.

Both baselines share everything with the run but what is named: `over_k1` has K=1 at the same M (the
controlled view), `over_k2m1` has K=2, M=1 (Table 2's normalisation).
"""

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from math import inf, isnan, nan
from typing import TYPE_CHECKING, Any

from repro.gpipe.schedule.kinds import SCHEDULES, make_schedule
from repro.gpipe.schedule.replay import replay
from repro.gpipe.schedule.timeline import Timeline
from repro.harness.results import Results, Run
from repro.harness.spec import canonical
from repro.harness.statistics import MIN_ROUNDS
from repro.paper.theory import UNIT_COSTS
from repro.report.style import MARKERS, model_name

if TYPE_CHECKING:
    from repro.harness.spec import RunSpec

_WHERE_SEVERAL = (
    "library",
    "transport",
    "trace",
    "optimizer",
    "lr",
    "seed",
    "warmup",
    "steps",
)  # named only where the settings differ in them
_UPDATES = {"sgd": "SGD", "rmsprop": "RMSProp", "adam": "Adam", "adamw": "AdamW"}
_RUNNING = ("stretch", "steps", "warmup", "trace", "transport")
# labels of what only a run with real layers has, or that is named otherwise
_FED = ("data", "compute", "device")
ITSELF = "itself"
NO_INTERVAL = f"no interval below {MIN_ROUNDS} rounds"
MARKS = (
    f"[low, high]: bootstrap 95 % interval over rounds, {NO_INTERVAL}; ~ where it spans 1: no "
    "difference shown."
)


@dataclass(frozen=True)
class Ratio:
    """Throughput of a run over that of `baseline`: median over `rounds` rounds and its 95 % interval, NaN for few."""

    value: float
    low: float
    high: float
    rounds: int
    baseline: str

    @property
    def verdict(self) -> str:
        """What the interval shows: faster, slower, or no difference when it spans 1; without one, nothing."""
        if self.baseline == ITSELF:
            return "baseline"
        if isnan(self.low):
            return "" if isnan(self.value) else "too few rounds"
        if self.low <= 1 <= self.high:
            return "no difference shown"
        return "faster" if self.low > 1 else "slower"

    def __str__(self) -> str:
        if self.baseline == ITSELF:
            return "1 (baseline)"
        if isnan(self.value):
            return "-"
        if isnan(self.low):
            return f"{self.value:.2f}"
        mark = " ~" if self.verdict == "no difference shown" else ""
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]{mark}"


def over_k1(results: Results, row: Run) -> Ratio:
    """Speedup over one stage at the same M, N and re-materialization."""
    return over(results, row, K=1)


def over_k2m1(results: Results, row: Run) -> Ratio:
    """Speedup over K=2, M=1 at the same N and re-materialization, as Table 2 normalises."""
    return over(results, row, K=2, M=1)


def over(results: Results, row: Run, **changed: Any) -> Ratio:
    """Throughput over the same run with another K, M, library or seed, in common rounds of its own place."""
    name = ", ".join(
        f"{field}={value}" for field, value in ({"K": row.K, "M": row.M} | changed).items()
    )
    name += f", {_batch(results, row)}, re-materialization {row.remat}"
    base = results.baseline(row, **changed)
    if base is None or row.status != "done":
        return Ratio(nan, nan, nan, 0, f"{name} (not measured)")
    if base is row:
        return Ratio(1.0, 1.0, 1.0, len(row.rounds), ITSELF)
    return Ratio(*results.ratio(row, base), baseline=name)


def rows_of(results: Results, **wanted: Any) -> list[Run]:
    """The recorded runs whose attributes have these values."""
    return matching(results.runs, **wanted)


def matching(runs: Iterable[Run], **wanted: Any) -> list[Run]:
    """The runs whose attributes have these values."""
    return [
        run for run in runs if all(getattr(run, name) == value for name, value in wanted.items())
    ]


def beside_paper(results: Results, experiment: str) -> bool:
    """Whether the paper's numbers and verdicts on them are shown with an experiment's results.

    Not at scale smoke alone, whose tiny models only show that everything runs: beside them the
    paper's numbers would look like a reproduction that failed.
    """
    done = rows_of(results, experiment=experiment, status="done")
    return any(row.scale != "smoke" for row in done)


def without_smoke(results: Results) -> Results:
    """The results without smoke runs of the paper's experiments that are done at another scale too."""
    larger = {name for name in of_paper(results) if beside_paper(results, name)}
    kept = [run for run in results.runs if run.scale != "smoke" or run.experiment not in larger]
    return replace(results, runs=kept)


def of_paper(results: Results) -> set[str]:
    """The recorded experiments that have a number in the paper; the others have nothing to compare with."""
    return {name for name, about in results.listings.items() if about.paper or about.neurips}


def fidelities(rows: Iterable[Run]) -> list[str]:
    """The fidelities that these rows have, in the order in which they are shown."""
    present = {row.fidelity for row in rows}
    return [fidelity for fidelity in MARKERS if fidelity in present]


def suffix(fidelity: str) -> str:
    """What a file's name ends in: nothing for measured."""
    return "" if fidelity == "measured" else f"_{fidelity}"


@dataclass(frozen=True)
class Setting:
    """Recorded runs of one experiment that differ in K, M and fidelity alone: one line of a figure or table.

    `details` names what the numbers depend on; `plan` is the schedule and the re-materialization.
    """

    model: str
    plan: tuple[str, str]
    details: str
    rows: list[Run]

    @property
    def title(self) -> str:
        """`Transformer (laptop, N=32, remat always, attention plain)`."""
        return (
            f"{model_name(self.model)} ({self.details})" if self.details else model_name(self.model)
        )

    @property
    def wide(self) -> str:
        """The same on lines that fit a figure."""
        return textwrap.fill(self.title, 92, break_on_hyphens=False)

    @property
    def narrow(self) -> str:
        """The same on lines that fit half a figure."""
        return (
            f"{model_name(self.model)}\n{textwrap.fill(self.details, 46, break_on_hyphens=False)}"
        )


def settings(results: Results, rows: list[Run]) -> list[Setting]:
    """These rows split by all that their specs fix besides K, M and fidelity, and by machine and scale."""
    split: dict[str, list[Run]] = {}
    for row in rows:
        split.setdefault(_key(results, row), []).append(row)
    also = [
        field for field in _WHERE_SEVERAL if len({getattr(row.spec, field) for row in rows}) > 1
    ]
    if len({link_name(row.spec) for row in rows if _real(results, row)}) > 1:
        also.append("link")
    if len({where(results, row) for row in rows if not _real(results, row)}) > 1:
        also.append("where")
    return [
        Setting(
            some[0].model,
            (some[0].schedule, some[0].remat),
            _details(results, some, also),
            some,
        )
        for some in split.values()
    ]


def settled(results: Results, rows: list[Run]) -> list[tuple[Setting, Run]]:
    """Each row with the setting that it belongs to."""
    return [(setting, row) for setting in settings(results, rows) for row in setting.rows]


def _key(results: Results, row: Run) -> str:
    spec = row.spec.model_dump(mode="json", exclude={"K", "M", "fidelity"})
    # how an emulation is run changes nothing of what it and its simulation model
    if spec["profile"]:
        spec |= dict.fromkeys(_RUNNING)
    spec["balance"] = spec["balance"] if isinstance(spec["balance"], str) else "given"
    return canonical({"spec": spec, "place": row.place})


def _details(results: Results, rows: list[Run], also: list[str]) -> str:
    """`laptop, L=4, N=32, remat always, attention plain`, without what is usual: gpipe, one replica, cut by time.

    Of modelled devices the profile stands instead of the scale: they are of the size and device
    that they model, whatever machine worked it out and whatever data it has.
    """
    row, real = rows[0], _real(results, rows[0])
    labels = next((row.labels for row in rows if row.labels), {})
    spec = row.spec
    parts = [where(results, row)] * (real or "where" in also)
    parts += [f"{name}={value}" for name, value in spec.model_args.items()]
    parts += (
        [_batch(results, row)]
        + [f"device profile {spec.profile}"] * (not real)
        + [f"remat {row.remat}"]
    )
    parts += [row.schedule] * (row.schedule != "gpipe") + [f"{row.D} replicas"] * (row.D > 1)
    parts += [
        f"balance by {spec.balance}" if isinstance(spec.balance, str) else "balance given"
    ] * (spec.balance != "time")
    parts += [f"link {link_name(spec)}"] * (real and "link" in also)
    fields = [
        field
        for field in also
        if field not in ("link", "where") and (real or field not in _RUNNING)
    ]
    parts += [f"{field} {getattr(spec, field)}" for field in fields]
    labels = {name: value for name, value in labels.items() if real or name not in _FED}
    new = {name: value for name, value in labels.items() if spec.model_args.get(name) != value}
    return ", ".join(
        [*parts, *(f"{name.replace('_', ' ')} {value}" for name, value in new.items())]
    )


def _real(results: Results, row: Run) -> bool:
    """Whether a run is not of a device that is modelled."""
    return row.spec.profile is None


def link_name(spec: "RunSpec") -> str:
    """`100 MB/s`; `not throttled` where messages are as fast as the machine passes them on."""
    return speed_name(spec.link.bytes_per_second or inf if spec.link else inf)


def speed_name(speed: float) -> str:
    """The same of bytes per second."""
    if speed == inf:
        return "not throttled"
    return f"{speed / 1e9:g} GB/s" if speed >= 1e9 else f"{speed / 1e6:g} MB/s"


def optimizers(results: Results, rows: Iterable[Run], *, always: bool = False) -> str:
    """Which update the steps of each fidelity hold; nothing where all have the same, unless `always`."""
    found: dict[str, set[str]] = {}
    for row in rows:
        name = row.spec.optimizer
        found.setdefault(_UPDATES.get(name, name), set()).add(row.fidelity)
    if len(found) < (1 if always else 2):
        return ""
    kinds = {name: [kind for kind in MARKERS if kind in some] for name, some in found.items()}
    order = sorted(kinds, key=lambda name: [*MARKERS].index(kinds[name][0]))
    words = (f"{name} in {' and '.join(kinds[name])} steps" for name in order)
    return f"Optimizer: {', '.join(words)}."


def _batch(results: Results, row: Run) -> str:
    """`N=32`, or that each run took the largest that fits."""
    spec = row.spec
    largest = spec.memory is not None and spec.fidelity == "simulated"
    return "the largest N that fits" if largest else f"N={row.N}"


def where(results: Results, row: Run) -> str:
    """The scale that a run was measured at, and the machine where the results come from several."""
    several = len({run.machine for run in results.runs}) > 1
    return f"{row.scale} on {row.machine}" if several else row.scale


@cache
def ideal(K: int, M: int, schedule: str, remat: str) -> Timeline | None:
    """This schedule with F:R:B = 1:1:2, equal stages, free transfers (`simulated`); None if it is not one of ours.

    For "gpipe" with re-materialization always its step is `paper.theory`'s early form; with never,
    the plain one.
    """
    if schedule not in SCHEDULES:
        return None
    return replay(make_schedule(schedule, K, M, remat), lambda action: UNIT_COSTS[action.kind])


def ideal_over_k1(K: int, M: int, schedule: str, remat: str) -> float:
    """The ideal's speedup over one stage, which does all the work without a bubble, at the same N and M."""
    return _ideal_rate(K, M, schedule, remat) / _ideal_rate(1, M, schedule, remat)


def ideal_over_k2m1(K: int, M: int, schedule: str, remat: str) -> float:
    """The ideal in Table 2's normalisation, at one fixed N."""
    return _ideal_rate(K, M, schedule, remat) / _ideal_rate(2, 1, schedule, remat)


def _ideal_rate(K: int, M: int, schedule: str, remat: str) -> float:
    """Mini-batches per time when the whole model on the whole mini-batch is one unit of forward work."""
    timeline = ideal(K, M, schedule, remat)
    return nan if timeline is None else K * M / timeline.step_time
