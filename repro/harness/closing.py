"""What `repro run` ends with: a table of results for each group of an experiment.

Of an exhibit of the paper it has one line for each model and fidelity: the widest run. The results
are read back from the records, so a second start, which measures nothing, ends with the same lines.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from repro.harness import contention, terminal, text
from repro.harness.plan import Plan, PlannedRun
from repro.harness.results import Results, Run, of_journals
from repro.harness.spec import TIMED, RunSpec, slug
from repro.harness.vary import varied, varied_arguments
from repro.io.untrusted import short

if TYPE_CHECKING:
    from rich.console import RenderableType

# What the paper divides by: Table 2 by K=2 and M=1, Table 3 by K=2.
_BASES: dict[str, dict[str, int]] = {
    "over K=1": {"K": 1},
    "over K=2, M=1": {"K": 2, "M": 1},
    "over K=2": {"K": 2},
}
_OF_EXHIBIT = ("model", "fidelity", "N")  # the settings that are columns there
# Fields that always have a column, or that say nothing about a timed step.
_NOT_VARIED = {"K", "M", "task", "memory", "stretch", "figures"}


def closing(plan: Plan) -> list["RenderableType"]:
    """The parts of the answer for one experiment; none if nothing was measured."""
    results, experiment = of_journals([plan.journal]), plan.experiment
    runs = {run.id: run for run in results.runs}
    shown = [run for run in plan.runs if run.id in runs]
    done = [run for run in shown if _has_number(runs[run.id])]
    parts: list[RenderableType] = []
    if experiment.paper or experiment.neurips:
        widest: dict[tuple[str, str], PlannedRun] = {}
        for run in done:
            # The first group of a model is what the exhibit is about; later ones vary it.
            key = run.spec.model, run.spec.fidelity
            before = widest.setdefault(key, run)
            if before.group == run.group and _size(run) > _size(before):
                widest[key] = run
        title = experiment.paper or f"NeurIPS {experiment.neurips}"
        if widest:
            parts += _table(title, [*widest.values()], runs, results, _BASES, _OF_EXHIBIT)
    else:
        several = len(experiment.groups) > 1
        for group in dict.fromkeys(run.group for run in done):
            members = [run for run in done if run.group == group]
            only_k1 = {name: _BASES[name] for name in ("over K=1",)}
            differing = [name for name in _varied(members) if name not in _NOT_VARIED]
            parts += _table(group if several else "", members, runs, results, only_k1, differing)
            parts += _fastest(
                [run for run in members if run.spec.library == "repro"], runs, results
            )
    not_done = Counter(runs[run.id].status for run in shown)
    del not_done["done"]
    if not_done:
        counts = ", ".join(f"{number} x {status}" for status, number in not_done.items())
        parts.append(f"  not measured: {counts}")
    return parts


def _varied(planned: Sequence[PlannedRun]) -> list[str]:
    """The fields, and the arguments of models, in which runs differ."""
    specs = [run.spec for run in planned]
    return [*varied(specs), *varied_arguments(specs)]


def _size(run: PlannedRun) -> tuple[int, int]:
    return run.spec.K, run.spec.M


def _table(
    title: str,
    planned: Sequence[PlannedRun],
    runs: Mapping[str, Run],
    results: Results,
    bases: Mapping[str, Mapping[str, int]],
    settings: Sequence[str],
) -> list[Any]:
    """These runs, a row each, below a line with what they have in common.

    Of the settings, those in which the runs differ are columns. A column has no place where its
    values are unknown in all rows.
    """
    various = _varied(planned)
    differing = [name for name in settings if name in various]
    first = planned[0].spec
    common = {
        "model": first.model,
        "fidelity": first.fidelity,
        "N": f"N={first.N}",
        "checkpoint": f"recompute {first.checkpoint}",
    }
    words = [title] if title not in ("", slug(first.model)) else []
    words += [word for field, word in common.items() if field not in various]
    units = {runs[run.id].unit for run in planned}
    unit = units.pop() if len(units) == 1 else "examples/s"
    rows = []
    for each in planned:
        run = runs[each.id]
        row = {"K": str(run.K), "M": str(run.M)}
        row |= {name: _field(each.spec, name) for name in differing}
        row["step"] = text.seconds(run.step_s) if _known(run.step_s) else "-"
        row[unit] = text.number(run.throughput) if _known(run.throughput) else "-"
        for name, changed in bases.items():
            row[name] = _ratio(run, results, changed)
        idle, peak = run.bubble_idle_over_total, run.peak_gib_max
        row["idle"] = f"{idle:.0%}" if _known(idle) else "-"
        row["peak"] = text.size(2**30 * peak) if _known(peak) else "-"
        row["fits"] = fitted(run) if run.fit else "-"
        busy = sum(contention.is_busy(round_.load) for round_ in run.rounds)
        row["rounds"] = f"{len(run.rounds)}, {busy} busy" if busy else str(len(run.rounds))
        rows.append(row)
    columns = [name for name in rows[0] if any(row[name] != "-" for row in rows)]
    cells = [[row[name] for name in columns] for row in rows]
    made = terminal.table_of(columns, cells, left=(*differing, "fits"))
    return [f"\n{', '.join(words)}", made, *_legend([cell for row in cells for cell in row])]


def fitted(run: Run) -> str:
    """The largest model that fits, or that the given one does."""
    if not _known(run.parameters):
        return run.size
    largest = "" if run.size == "as given" else "largest "
    return f"{largest}{run.size}, {run.parameters / 1e6:,.1f} million parameters"


def _ratio(run: Run, results: Results, changed: Mapping[str, int]) -> str:
    """`1.42x [1.32, 1.65]` over the run with these settings; ~ after it if the interval spans 1."""
    value, low, high = results.speedup(run, **changed)
    is_base = all(getattr(run, name) == number for name, number in changed.items())
    return "-" if is_base or not _known(value) else text.ratio(value, low, high)


def _fastest(
    planned: Sequence[PlannedRun], recorded: Mapping[str, Run], results: Results
) -> list[str]:
    """Which K and M are fastest, if these runs differ in nothing else and the rounds show it."""
    runs, specs = [recorded[each.id] for each in planned], [each.spec for each in planned]
    if len(runs) < 2:
        return []
    settings = {*_varied(planned)} - {"K", "M", "stretch"}
    if all(isinstance(spec.balance, tuple) for spec in specs):
        settings -= {"balance"}  # a list of layer counts fits one K alone
    # A cost model may have chosen another N than the spec's.
    if settings or len({run.N for run in runs}) > 1:
        return []
    first, second = sorted(runs, key=lambda run: -run.throughput)[:2]
    line = f"  fastest: K={first.K}, M={first.M}"
    if first.fidelity not in TIMED:  # the same every time
        return [line]
    value, low, high, _ = results.ratio(first, second)
    if not low > 1:
        return []
    return [f"{line}, {text.ratio(value, low, high)} over the next, K={second.K}, M={second.M}"]


def _field(spec: RunSpec, name: str) -> str:
    value = spec.model_args[name] if name in spec.model_args else getattr(spec, name, None)
    if value is None:
        return "-"
    if name == "link":
        return f"{text.number(8e-9 * value.bytes_per_second)} Gbit/s"
    if isinstance(value, tuple):
        return "+".join(map(str, value))
    return short(value, 24, quote=not str(value).isprintable())


def _legend(cells: Sequence[str]) -> list[str]:
    """What the marks in a table mean, for those that occur in it."""
    lines = []
    if any("x [" in cell for cell in cells):
        lines.append(
            "  over: throughput over that of the same run at this K and M; [95 % interval over "
            "rounds]"
        )
    if any(cell.endswith(" ~") for cell in cells):
        lines.append("  ~: the interval spans 1, no difference is shown")
    if any(cell.endswith(" busy") for cell in cells):
        lines.append(
            f"  busy: other processes took more than {contention.BUSY:.0%} of the usable cores; "
            "--force measures those rounds again"
        )
    return lines


def _has_number(run: Run) -> bool:
    return run.done and (_known(run.step_s) or run.fit is not None)


def _known(value: float) -> bool:
    return not math.isnan(value)
