"""Recorded runs on the terminal: a table, and the numbers of an exhibit on one line."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import isnan
from typing import TYPE_CHECKING, Any

from repro.harness import contention, text
from repro.harness.plan import Plan
from repro.harness.results import Results, Run, of_journals
from repro.harness.spec import PLAIN
from repro.harness.terminal import table_of
from repro.io.untrusted import short

if TYPE_CHECKING:
    from rich.console import RenderableType

_BASES: dict[str, dict[str, Any]] = {"over plain": PLAIN, "over K=1": {"K": 1}}
# Columns that are printed once, above the table, if they are the same in all rows.
_SETTINGS = (
    "experiment", "recorded", "method", "D", "recompute", "fidelity", "differs in", "status",
)  # fmt: skip
_WORDS = ("run", *_SETTINGS, "fits", "quality", "checks")  # aligned to the left
# On test data: metric -> its name and form.
_QUALITIES = {"bleu": ("BLEU", text.digits), "accuracy": ("accuracy", text.percent)}
_MARKS = {
    "over plain": "over plain: throughput over that of plain training, K=1 and M=1 without "
    "recomputation, with its 95 % interval over blocks",
    " ~": "~: the interval spans 1, no difference is shown; more --rounds make it narrower",
    "in turn": "in turn: measured alone, not step against step",
    " busy": f"busy: other processes took more than {text.percent(contention.BUSY)} of the usable "
    "cores; --force measures those rounds again",
}


def answer(plan: Plan) -> str:
    """The numbers of an exhibit's widest run, of the model and fidelity that it begins with."""
    runs, results = recorded(plan)
    done = [run for run in runs if run.done and run.rounds]
    if not done:
        return "no run is done"
    kinds = [(run.model, run.fidelity, run.spec.task) for run in done]
    alike = [run for run, kind in zip(done, kinds, strict=True) if kind == kinds[0]]
    # Later groups of a model vary the first.
    widest = max((run for run in alike if run.group == done[0].group), key=lambda r: (r.K, r.M))
    found = _numbers(widest, results) | {"quality": _quality(alike), "checks": _checks(alike)}
    found.pop("rounds")
    values = [f"{name} {value}" for name, value in found.items() if value != "-"]
    of = f" (of {len(alike)} runs)" if len(alike) > 1 else ""
    point = f"{widest.model}, {widest.fidelity}, K={widest.K}, M={widest.M}{of}"
    return ": ".join([point, *filter(None, [", ".join(values)])])


def table(runs: Sequence[Run], results: Results) -> list["RenderableType"]:
    """A row for each run, below what all have in common; columns of unknown values are left out."""
    rows = [_row(run, results) for run in runs]
    common = [name for name in _SETTINGS if len({row[name] for row in rows}) == 1]
    known = [f"{name} {rows[0][name]}" for name in common if rows[0][name] != "-"]
    cells = [{name: cell for name, cell in row.items() if name not in common} for row in rows]
    made = table_of(cells, _WORDS)
    texts = [*(str(column.header) for column in made.columns)]
    texts += [cell for row in cells for cell in row.values()]
    marks = [f"  {what}" for mark, what in _MARKS.items() if any(mark in each for each in texts)]
    return [f"{', '.join(known)}\n", made, *marks]


def recorded(plan: Plan) -> tuple[list[Run], Results]:
    """The runs of a plan that are recorded, in its order and without controls."""
    results = of_journals([plan.journal])
    known = {run.id: run for run in results.runs}
    chosen = [known[run.id] for run in plan.runs if run.id in known]
    return [run for run in chosen if not run.spec.control], results


def _row(run: Run, results: Results) -> dict[str, str]:
    return {
        "run": run.id,
        "experiment": run.experiment,
        "recorded": f"{run.machine}/{run.scale}",
        "K": str(run.K),
        "M": str(run.M),
        "N": str(run.N),
        "method": run.spec.method,
        "D": str(run.D),
        "recompute": run.checkpoint,
        "fidelity": run.fidelity,
        "differs in": run.differs_in or "-",
        **_numbers(run, results),
        "status": short(run.status, 60, quote=False),
    }


def _numbers(run: Run, results: Results) -> dict[str, str]:
    """As text, `-` where one is not known."""

    def over(changed: Mapping[str, Any]) -> str:
        value, low, high = results.speedup(run, **changed)
        is_base = results.baseline(run, **changed) is run
        return "-" if is_base else known(value, lambda value: text.ratio(value, low, high))

    def known(value: float, form: Callable[[float], str]) -> str:
        return "-" if isnan(value) else form(value)

    busy = sum(contention.is_busy(round_.load) for round_ in run.rounds)
    rounds = f"{len(run.rounds)}, {busy} busy" if busy else str(len(run.rounds))
    fits = run.size or "-"
    if not isnan(run.parameters):
        fits += f", {text.digits(run.parameters)} parameters"
    return {
        "step": known(run.step_s, text.seconds),
        "throughput": known(run.throughput, lambda value: f"{text.digits(value)} {run.unit}"),
        **{name: over(changed) for name, changed in _BASES.items()},
        "idle": known(run.idle_over_total, text.percent),
        "peak": known(2**30 * run.peak_gib_max, text.size),
        "fits": fits,
        "quality": _quality([run]),
        "checks": _checks([run]),
        "rounds": f"{rounds}, in turn" if run.in_turn else rounds,
    }


def _quality(runs: Sequence[Run]) -> str:
    """The quality on test data, from the worst to the best of several trainings."""
    for metric, (name, form) in _QUALITIES.items():
        found = [run.newest.get("metrics", {}).get(metric) for run in runs]
        if values := [value for value in found if value is not None]:
            ends = dict.fromkeys(map(form, (min(values), max(values))))
            return f"{name} {' to '.join(ends)}"
    return "-"


def _checks(runs: Sequence[Run]) -> str:
    """How many checks found a library to train as the unsplit model, and which did not."""
    found = [
        (check["verdict"], f"{name} of {run.id}")
        for run in runs
        for name, check in run.newest.get("checks", {}).items()
    ]
    counts = Counter(verdict for verdict, _ in found)
    wrong = [check for verdict, check in found if verdict == "wrong"]
    text = ", ".join(f"{number} {verdict}" for verdict, number in counts.items()) or "-"
    return f"{text} ({'; '.join(wrong)})" if wrong else text
