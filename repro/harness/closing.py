"""What `repro run` ends with: a table of results, or one line for each exhibit of the paper.

The results are read back from the records, so a second start, which measures nothing, ends with the
same lines.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from repro.harness import contention, terminal, text
from repro.harness.plan import Plan, PlannedRun
from repro.harness.results import Results, Run, of_journals
from repro.harness.spec import TIMED, RunSpec, slug
from repro.harness.statistics import MIN_ROUNDS
from repro.harness.vary import varied, varied_arguments
from repro.io.untrusted import short

if TYPE_CHECKING:
    from rich.console import RenderableType

# What the paper divides by; the first recorded one is taken. Table 2: K=2 and M=1; Table 3: K=2.
_BASES: tuple[dict[str, int], ...] = ({"K": 2, "M": 1}, {"K": 2}, {"K": 1})
# Fields that always have a column, or that say nothing about a timed step.
_NOT_VARIED = {"K", "M", "task", "memory", "stretch", "figures"}


def closing(plan: Plan) -> list["RenderableType"]:
    """The parts of the answer for one experiment; none if nothing was measured."""
    results = of_journals([plan.journal])
    runs = {run.id: run for run in results.runs}
    if plan.experiment.paper or plan.experiment.neurips:
        return exhibit(plan, results, runs)
    parts: list[RenderableType] = []
    for group in plan.experiment.groups:
        recorded = [run for run in plan.group(group.name) if run.id in runs]
        timed = [run for run in recorded if _is_timed(runs[run.id])]
        if timed:
            several = len(plan.experiment.groups) > 1
            parts += table(group.name if several else "", timed, runs, results)
            ours = [run for run in timed if run.spec.library == "repro"]
            parts += [f"  {line}" for line in best(ours, runs, results)]
        not_done = Counter(runs[run.id].status for run in recorded)
        del not_done["done"]
        if not_done:
            counts = ", ".join(f"{number} x {status}" for status, number in not_done.items())
            parts.append(f"  not measured: {counts}")
    return parts


def table(
    group: str, planned: Sequence[PlannedRun], runs: Mapping[str, Run], results: Results
) -> list[Any]:
    """The timed runs of a group, one row each, below a line with what they have in common.

    Args:
        group: its name; empty if the experiment has only this one.
        planned: the runs to show, in order; all of them are timed.
        runs: run id -> what was recorded.
        results: what they were read from.
    """
    specs = [run.spec for run in planned]
    fields_differing = [name for name in varied(specs) if name not in _NOT_VARIED]
    differing = (*fields_differing, *varied_arguments(specs))
    first = planned[0].spec
    title = [] if group in ("", slug(first.model)) else [group]
    fields = {
        "model": first.model,
        "fidelity": first.fidelity,
        "N": f"N={first.N}",
        "checkpoint": f"re-materialization {first.checkpoint}",
    }
    title += [words for field, words in fields.items() if field not in differing]
    units = sorted({runs[run.id].unit for run in planned})
    throughput = " or ".join(units)
    columns = ("K", "M", *differing, "step", throughput, "over K=1", "idle", "peak", "rounds")
    rows = []
    for each in planned:
        run = runs[each.id]
        idle, peak = run.bubble_idle_over_total, run.peak_gib_max
        rows.append(
            (
                str(run.K),
                str(run.M),
                *(_field(each.spec, name) for name in differing),
                text.seconds(run.step_s),
                text.number(run.throughput),
                speedup(run, results),
                f"{idle:.0%}" if _known(idle) else "-",
                text.size(2**30 * peak) if _known(peak) else "-",
                _rounds(run),
            )
        )
    # Columns of unknown values only are left out.
    kept = [n for n in range(len(columns)) if any(row[n] != "-" for row in rows)]
    kept_rows = [[row[n] for n in kept] for row in rows]
    made = terminal.table_of([columns[n] for n in kept], kept_rows, left=differing)
    return [f"\n{', '.join(title)}", made, *_legend(rows)]


def speedup(run: Run, results: Results) -> str:
    """`1.42x [1.32, 1.65]` over K=1; ~ after it if the interval spans 1."""
    value, low, high = results.speedup(run, K=1)
    if run.K == 1 or not _known(value):
        return "-"
    return text.ratio(value, low, high)


def best(planned: Sequence[PlannedRun], recorded: Mapping[str, Run], results: Results) -> list[str]:
    """Which K and M are fastest, if the rounds show it.

    Empty if the runs differ in more than K and M.
    """
    runs = [recorded[each.id] for each in planned]
    specs = [each.spec for each in planned]
    if len(runs) < 2:
        return []
    settings = {*varied(specs), *varied_arguments(specs)} - {"K", "M", "stretch"}
    if all(isinstance(each.spec.balance, tuple) for each in planned):
        settings -= {"balance"}  # a list of layer counts fits one K alone
    # A cost model may have chosen another N than the spec's.
    if settings or len({run.N for run in runs}) > 1:
        return []
    first, second = sorted(runs, key=lambda run: -run.throughput)[:2]
    fastest = f"fastest: {_point(first)} with {text.number(first.throughput)} {first.unit}"
    if first.fidelity not in TIMED:  # the same every time
        return [fastest]
    value, low, high, rounds = results.ratio(first, second)
    if low > 1:
        return [f"{fastest}, {text.ratio(value, low, high)} over the next, {_point(second)}"]
    return [
        f"no fastest is shown: {_point(first)} and {_point(second)} do not differ in {rounds} "
        f"rounds in common; it takes {MIN_ROUNDS} or more"
    ]


def exhibit(plan: Plan, results: Results, recorded: Mapping[str, Run]) -> list[Any]:
    """One line about an experiment of the paper: the key cell of each model and fidelity.

    The key cell is that of the largest K and M; of a search for the largest model, that of the
    largest K.
    """
    experiment = plan.experiment
    cells: dict[tuple[str, str], str] = {}
    for group in experiment.groups:
        runs: dict[tuple[str, str], list[Run]] = {}
        for each in plan.group(group.name):
            if each.id in recorded:
                key = (each.spec.model, each.spec.fidelity)
                runs.setdefault(key, []).append(recorded[each.id])
        for key, alike in runs.items():
            # The first group of a model is what the exhibit is about; later ones vary it.
            if not cells.get(key):
                cells[key] = _key_cell(alike, results)
    texts = [f"{model}, {fidelity}: {cell}" for (model, fidelity), cell in cells.items() if cell]
    name = experiment.paper or f"NeurIPS {experiment.neurips}"
    return [f"\n{name}: {'; '.join(texts) or 'nothing was measured'}"]


def _key_cell(runs: Sequence[Run], results: Results) -> str:
    """The cell that stands for runs of one model and one fidelity; empty if none is done."""
    fitted = [run for run in runs if _known(run.parameters) and run.size != "as given"]
    if fitted:
        largest = max(fitted, key=lambda run: run.K)
        parameters = text.number(largest.parameters / 1e6)
        return f"K={largest.K} fits {largest.size}, {parameters} million parameters"
    trained = [run for run in runs if run.spec.task == "learn" and run.done]
    if trained:
        return "trained, see the report"
    timed = [run for run in runs if _is_timed(run)]
    if not timed:
        return ""
    last = max(timed, key=lambda run: (run.K, run.M))
    for other in _BASES:
        base = results.baseline(last, **other)
        if base is None or base is last:
            continue
        value, low, high, rounds = results.ratio(last, base)
        if rounds:
            over = ", ".join(f"{field}={number}" for field, number in other.items())
            return f"{_point(last)} is {text.ratio(value, low, high)} over {over}"
    if _known(last.bubble_idle_over_total):
        return f"{_point(last)} idles {last.bubble_idle_over_total:.0%} of K x step"
    return f"{_point(last)} takes {text.seconds(last.step_s)} a step"


def _field(spec: RunSpec, name: str) -> str:
    value = spec.model_args[name] if name in spec.model_args else getattr(spec, name, None)
    if value is None:
        return "-"
    if name == "link":
        return f"{text.number(8e-9 * value.bytes_per_second)} Gbit/s"
    if isinstance(value, tuple):
        return "+".join(map(str, value))
    return short(value, 24, quote=not str(value).isprintable())


def _rounds(run: Run) -> str:
    """`5`, or `5, 2 busy` if other processes took CPU time in two of them."""
    busy = sum(contention.is_busy(round_.load) for round_ in run.rounds)
    return f"{len(run.rounds)}, {busy} busy" if busy else str(len(run.rounds))


def _legend(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """What the marks in a table mean, for those that occur in it."""
    cells = [cell for row in rows for cell in row]
    lines = []
    if any("x" in cell and "[" in cell for cell in cells):
        lines.append(
            "  over K=1: throughput over that of one stage at the same N and M; [95 % interval "
            "over rounds]"
        )
    if any(cell.endswith(" ~") for cell in cells):
        lines.append("  ~: the interval spans 1, no difference is shown")
    if any(cell.endswith(" busy") for cell in cells):
        lines.append(
            f"  busy: other processes took more than {contention.BUSY:.0%} of the usable cores; "
            "--force measures those rounds again"
        )
    return lines


def _is_timed(run: Run) -> bool:
    return _known(run.step_s)


def _known(value: float) -> bool:
    return not math.isnan(value)


def _point(run: Run) -> str:
    return f"K={run.K}, M={run.M}"
