"""Tables of planned and of recorded runs on the terminal."""

from collections.abc import Callable, Mapping, Sequence
from math import isnan
from typing import TYPE_CHECKING, Any

from repro.harness import text
from repro.harness.plan import Plan
from repro.harness.results import Results, Run, of_journals
from repro.harness.spec import PLAIN, RunSpec
from repro.harness.terminal import table_of
from repro.io.untrusted import short

if TYPE_CHECKING:
    from rich.console import RenderableType

_BASES: dict[str, dict[str, Any]] = {"over plain": PLAIN, "over K=1": {"K": 1}}
# Columns that are printed once, above the table, if they are the same in all rows.
_SETTINGS = (
    "experiment", "recorded", "method", "D", "recompute", "fidelity", "differs in", "status",
)  # fmt: skip
_MARKS = {
    "over plain": "over plain: throughput over that of plain training, K=1 and M=1 without "
    "recomputation, with its 95 % interval over blocks",
    " ~": "~: the interval spans 1, no difference is shown; more --rounds make it narrower",
    "in turn": "in turn: measured alone, not step against step",
}


def planned(plan: Plan) -> list["RenderableType"]:
    """A row for each run of a plan."""
    rows = []
    for run in plan.runs:
        row = {"run": run.id, **_settings(run.spec), "differs in": run.differs_in or "-"}
        row["rounds"] = "-" if run.obstacle else f"{run.have} of {run.wanted}"
        row["status"] = f"{run.status}, as baseline" if run.added else str(run.status)
        rows.append(row)
    return _table(rows)


def recorded(runs: Sequence[Run], results: Results) -> list["RenderableType"]:
    """A row for each run with its numbers."""
    return _table([_row(run, results) for run in runs])


def recorded_of(plan: Plan) -> list["RenderableType"]:
    """The runs of a plan that are recorded, in its order and without controls."""
    results = of_journals([plan.journal])
    known = {run.id: run for run in results.runs}
    chosen = [known[run.id] for run in plan.runs if run.id in known]
    return recorded([run for run in chosen if not run.spec.control], results)


def _table(rows: Sequence[Mapping[str, str]]) -> list["RenderableType"]:
    """Rows below what all have in common; columns of unknown values are left out."""
    common = [n for n in _SETTINGS if n in rows[0] and len({row[n] for row in rows}) == 1]
    known = [f"{name} {rows[0][name]}" for name in common if rows[0][name] != "-"]
    cells = [{name: cell for name, cell in row.items() if name not in common} for row in rows]
    made = table_of(cells, wrapped=_SETTINGS)
    texts = [*(str(column.header) for column in made.columns)]
    texts += [cell for row in cells for cell in row.values()]
    marks = [f"  {what}" for mark, what in _MARKS.items() if any(mark in each for each in texts)]
    return [f"{', '.join(known)}\n", made, *marks]


def _settings(spec: RunSpec) -> dict[str, str]:
    return {
        "K": str(spec.K),
        "M": str(spec.M),
        "N": str(spec.N),
        "method": spec.method,
        "D": str(spec.D),
        "recompute": spec.recompute,
        "fidelity": spec.fidelity,
    }


def _row(run: Run, results: Results) -> dict[str, str]:
    """As text, `-` where a value is not known."""

    def over(changed: Mapping[str, Any]) -> str:
        value, low, high = results.speedup(run, **changed)
        is_base = results.baseline(run, **changed) is run
        return "-" if is_base else known(value, lambda value: text.ratio(value, low, high))

    def known(value: float, form: Callable[[float], str]) -> str:
        return "-" if isnan(value) else form(value)

    fits = run.size or "-"
    if not isnan(run.parameters):
        fits += f", {text.digits(run.parameters)} parameters"
    return {
        "run": run.id,
        "experiment": run.experiment,
        "recorded": f"{run.machine}/{run.scale}",
        **_settings(run.spec),
        "N": str(run.N),
        "differs in": run.differs_in or "-",
        "step": known(run.step_s, text.seconds),
        "throughput": known(run.throughput, lambda value: f"{text.digits(value)} {run.unit}"),
        **{name: over(changed) for name, changed in _BASES.items()},
        "idle": known(run.idle_over_total, text.percent),
        "peak": known(2**30 * run.peak_gib_max, text.size),
        "fits": fits,
        "rounds": f"{len(run.rounds)}{', in turn' if run.in_turn else ''}",
        "status": short(run.status, 60, quote=False),
    }
