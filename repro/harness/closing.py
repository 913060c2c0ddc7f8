"""What `repro run` ends with: a table of what came out, or a line for each exhibit of the paper.

Everything is read back from the records, so a second start, which measures nothing, ends in the
same way.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from repro.harness import contention, terminal
from repro.harness.outside import short
from repro.harness.plan import Plan, PlannedRun
from repro.harness.results import Results, Run, load
from repro.harness.spec import TIMED, RunSpec, canonical, slug
from repro.harness.statistics import MIN_ROUNDS

if TYPE_CHECKING:
    from rich.console import RenderableType

# What the paper divides by, the first that there is: Table 2 by K=2 and M=1, Table 3 by K=2.
_BASES: tuple[dict[str, int], ...] = ({"K": 2, "M": 1}, {"K": 2}, {"K": 1})
# Fields that have a column in any case, or that say nothing about a timed step.
_SHOWN = {"K", "M", "task", "memory", "stretch"}


def closing(plan: Plan) -> list["RenderableType"]:
    """The parts of the answer for one experiment; none where nothing was measured."""
    results = load(plan.folder.path)
    rows = {run.id: run for run in results.runs}
    if plan.experiment.paper or plan.experiment.neurips:
        return exhibit(plan, results, rows)
    parts: list[RenderableType] = []
    for group in plan.experiment.groups:
        runs = plan.group(group.name)
        done = [run for run in runs if run.id in rows and _is_timed(rows[run.id])]
        if done:
            several = len(plan.experiment.groups) > 1
            parts += table(group.name if several else "", done, rows, results)
            own = [run for run in done if run.spec.library == "repro"]
            parts += [f"  {line}" for line in best(own, rows, results)]
        parts += _missing([rows[run.id] for run in runs if run.id in rows])
    return parts


def table(
    group: str, runs: Sequence[PlannedRun], rows: Mapping[str, Run], results: Results
) -> list[Any]:
    """The timed runs of a group, one row each, with a line above that says what they have in common.

    Args:
        group: its name, or nothing where the experiment has only this one.
        runs: in order; each has a row that is timed.
        rows: run id -> its row.
        results: whose rounds say which were taken under load.
    """
    varied = _varied([run.spec for run in runs])
    first = runs[0].spec
    common = [f"{first.model}"] if "model" not in varied else []
    common += [first.fidelity] if "fidelity" not in varied else []
    common += [f"N={first.N}"] if "N" not in varied else []
    common += [f"re-materialization {first.checkpoint}"] if "checkpoint" not in varied else []
    units = sorted({rows[run.id].unit for run in runs})
    columns = ("K", "M", *varied, "step", " or ".join(units), "over K=1", "idle", "peak", "rounds")
    cells = []
    for run in runs:
        row = rows[run.id]
        cells.append(
            (
                str(row.K),
                str(row.M),
                *(_field(run.spec, name) for name in varied),
                terminal.seconds(row.step_s),
                terminal.number(row.throughput),
                speedup(row, results),
                f"{row.bubble_idle_over_total:.0%}" if _known(row.bubble_idle_over_total) else "-",
                terminal.size(2**30 * row.peak_gib_max) if _known(row.peak_gib_max) else "-",
                _rounds(row),
            )
        )
    head = ", ".join(common if group in ("", slug(first.model)) else [group, *common])
    # A column in which nothing is known says nothing.
    kept = [n for n in range(len(columns)) if any(row[n] != "-" for row in cells)]
    shown = [[row[n] for n in kept] for row in cells]
    made = terminal.table_of([columns[n] for n in kept], shown, left=varied)
    return [f"\n{head}", made, *_reading(cells)]


def speedup(row: Run, results: Results) -> str:
    """`1.42x [1.32, 1.65]` over K=1; with ~ where the interval spans 1."""
    value, low, high = results.speedup(row, K=1)
    if row.K == 1 or not _known(value):
        return "-"
    return _times(value, low, high)


def best(runs: Sequence[PlannedRun], of: Mapping[str, Run], results: Results) -> list[str]:
    """Which K and M are fastest, if that is shown, and which take least memory.

    Nothing is said of runs that differ in more than K and M.
    """
    # A list of layer counts fits one K alone, and the clock of an emulated run is no part of its
    # seconds.
    settings = {
        canonical(
            run.spec.model_dump(mode="json", exclude={"K", "M", "stretch"})
            | ({"balance": "given"} if isinstance(run.spec.balance, tuple) else {})
        )
        for run in runs
    }
    rows = [of[run.id] for run in runs]
    # A cost model may have chosen another N than the spec's.
    if len(rows) < 2 or len(settings) > 1 or len({row.N for row in rows}) > 1:
        return []
    lines = [_fastest(rows, results)]
    weighed = [row for row in rows if _known(row.peak_gib_max)]
    if weighed:
        leanest = min(weighed, key=lambda row: row.peak_gib_max)
        size = terminal.size(2**30 * leanest.peak_gib_max)
        lines.append(f"smallest peak: {_place(leanest)} with {size} on its fullest stage")
    return lines


def _fastest(rows: Sequence[Run], results: Results) -> str:
    """The fastest point, or why none is known to be: the first two may differ by chance alone."""
    first, second = sorted(rows, key=lambda row: -row.throughput)[:2]
    told = f"{_place(first)} with {terminal.rate(first.throughput, first.unit)}"
    if first.fidelity not in TIMED:  # nothing is left to chance
        return f"fastest: {told}"
    value, low, high, rounds = results.ratio(first, second)
    if rounds < MIN_ROUNDS:
        return (
            f"no fastest is shown: that takes {MIN_ROUNDS} rounds together, {_place(first)} and "
            f"{_place(second)} have {rounds}; the highest median is {told}"
        )
    if low <= 1 <= high:
        return (
            f"no difference is shown between the fastest two, {_place(first)} and {_place(second)}"
        )
    if high < 1:  # the medians of all rounds and of the rounds together disagree
        first, second, value, low, high = second, first, 1 / value, 1 / high, 1 / low
        told = f"{_place(first)} with {terminal.rate(first.throughput, first.unit)}"
    return f"fastest: {told}, {_times(value, low, high)} over the next, {_place(second)}"


def exhibit(plan: Plan, results: Results, rows: Mapping[str, Run]) -> list[Any]:
    """One line about an experiment of the paper: the key cell of each model, measured, emulated, simulated or counted.

    A key cell is the one of the largest K and M; of a search for the largest model the first one of
    the largest K.
    """
    about = plan.experiment
    name = about.paper or f"NeurIPS {about.neurips}"
    cells: dict[tuple[str, str], str] = {}
    for group in about.groups:
        runs = [run for run in plan.group(group.name) if run.id in rows]
        for place in dict.fromkeys((run.spec.model, run.spec.fidelity) for run in runs):
            alike = [rows[run.id] for run in runs if (run.spec.model, run.spec.fidelity) == place]
            # The first group of a model has what the exhibit is about, later ones vary it.
            if place not in cells and (cell := _key_cell(alike, results)):
                cells[place] = cell
    told = "; ".join(f"{model}, {fidelity}: {cell}" for (model, fidelity), cell in cells.items())
    return [f"\n{name}: {told or 'nothing was measured'}"]


def _key_cell(rows: Sequence[Run], results: Results) -> str:
    """What stands for all of these rows, of one model and one fidelity; nothing where none is done."""
    grown = [row for row in rows if _known(row.parameters) and row.size != "as given"]
    if grown:
        most = max(grown, key=lambda row: row.K)
        return (
            f"K={most.K} fits {most.size}, {terminal.number(most.parameters / 1e6)} "
            "million parameters"
        )
    timed = [row for row in rows if _is_timed(row)]
    if not timed:
        return ""
    last = max(timed, key=lambda row: (row.K, row.M))
    for other in _BASES:
        base = results.baseline(last, **other)
        if base is None or base is last:
            continue
        value, low, high, rounds = results.ratio(last, base)
        if rounds:
            over = ", ".join(f"{field}={number}" for field, number in other.items())
            return f"{_place(last)} is {_times(value, low, high)} over {over}"
    if _known(last.bubble_idle_over_total):
        return f"{_place(last)} idles {last.bubble_idle_over_total:.0%} of K x step"
    return f"{_place(last)} takes {terminal.seconds(last.step_s)} a step"


def _varied(specs: Sequence[RunSpec]) -> tuple[str, ...]:
    """Fields in which runs of a group differ besides K and M; of model_args the arguments."""
    names = [name for name in RunSpec.model_fields if name not in _SHOWN and name != "model_args"]
    arguments = dict.fromkeys(name for spec in specs for name in spec.model_args)
    return tuple(
        name for name in [*names, *arguments] if len({_field(spec, name) for spec in specs}) > 1
    )


def _field(spec: RunSpec, name: str) -> str:
    """A field of a spec, or an argument of its model, as a cell."""
    value = getattr(spec, name) if name in RunSpec.model_fields else spec.model_args.get(name)
    if value is None:
        return "-"
    if name == "link":
        return f"{terminal.number(8e-9 * value.bytes_per_second)} Gbit/s"
    if isinstance(value, tuple):
        return "+".join(map(str, value))
    return short(value, 24, quote=not str(value).isprintable())


def _rounds(row: Run) -> str:
    """`5`, or `5, 2 busy`; only what a clock measured can be disturbed."""
    busy = sum(contention.is_busy(round_.load) for round_ in row.rounds)
    return f"{len(row.rounds)}, {busy} busy" if busy else str(len(row.rounds))


def _reading(cells: Sequence[tuple[str, ...]]) -> list[str]:
    """What marks in the table mean, for those that are there."""
    words = [cell for row in cells for cell in row]
    told = []
    if any("x" in cell and "[" in cell for cell in words):
        told.append(
            "over K=1: throughput over that of one stage at the same N and M; [95 % interval over "
            "rounds]"
        )
    if any(cell.endswith(" ~") for cell in words):
        told.append("~: the interval spans 1, no difference is shown")
    if any(cell.endswith(" busy") for cell in words):
        told.append(
            f"busy: other processes took more than {contention.BUSY:.0%} of the usable cores; "
            "--force measures those rounds again"
        )
    return [f"  {line}" for line in told]


def _missing(rows: Sequence[Run]) -> list[str]:
    """How many runs have no result, for each reason."""
    count = Counter(str(row.status) for row in rows if row.status != "done")
    return (
        [f"  not measured: {', '.join(f'{n} x {status}' for status, n in count.items())}"]
        if count
        else []
    )


def _is_timed(row: Run) -> bool:
    return _known(row.step_s)


def _known(value: float) -> bool:
    return not math.isnan(value)


def _place(row: Run) -> str:
    return f"K={row.K}, M={row.M}"


def _times(value: float, low: float, high: float) -> str:
    interval = f" [{low:.2f}, {high:.2f}]" if _known(low) else ""
    return f"{value:.2f}x{interval}{' ~' if low <= 1 <= high else ''}"
