"""What `repro run` answers: lines for an exhibit of the project, a table for runs of one's own.

The results are read back from the records, so a second start, which measures nothing, gives the
same answer.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import isnan
from typing import TYPE_CHECKING, Any

from repro.harness import contention, text
from repro.harness.plan import Plan
from repro.harness.results import Results, Run, of_journals
from repro.harness.spec import PLAIN, RunSpec, slug
from repro.harness.terminal import table_of
from repro.harness.vary import all_varied
from repro.io.untrusted import short

if TYPE_CHECKING:
    from rich.console import RenderableType

_BASES: dict[str, dict[str, Any]] = {"over plain": PLAIN, "over K=1": {"K": 1}}
# Fields that always have a column, or that do not describe a timed step.
_NOT_VARIED = {"K", "M", "task", "memory", "stretch", "figures", "steps", "warmup", "trace"}
_OF_METHOD = {"library", "schedule", "stages_per_rank", "zero"}  # one column, the method's name
_TITLES = {"checkpoint": "recompute"}
_QUALITIES = {"bleu": "BLEU {:.2f}", "accuracy": "accuracy {:.1%}"}  # on test data
_MARKS = {
    "over plain": "over plain: throughput over that of plain training, K=1 and M=1 without "
    "recomputation; [95 % interval over blocks]",
    " ~": "~: the interval spans 1, no difference is shown; more --rounds make it narrower",
    "in turn": "in turn: measured alone, not step against step",
    " busy": f"busy: other processes took more than {contention.BUSY:.0%} of the usable cores; "
    "--force measures those rounds again",
}


def lines(plan: Plan) -> list[str]:
    """A line for each model, fidelity and task of an exhibit: the numbers of its widest run."""
    results, done = _done(plan)
    alike: dict[tuple[str, str, str], list[Run]] = {}
    for run in done:
        alike.setdefault((run.model, run.fidelity, run.spec.task), []).append(run)
    answer = []
    for runs in alike.values():
        # The first group of a model is what the exhibit is about; later ones vary it.
        widest = max((run for run in runs if run.group == runs[0].group), key=lambda r: (r.K, r.M))
        found = _numbers(widest, results) | {"quality": _quality(runs), "checks": _checks(runs)}
        found.pop("rounds")
        unit = {"throughput": f" {widest.unit}"}
        values = [f"{n} {value}{unit.get(n, '')}" for n, value in found.items() if value != "-"]
        point = f"{widest.model}, {widest.fidelity}, K={widest.K}, M={widest.M}"
        of = f" (of {len(runs)} runs)" if len(runs) > 1 else ""
        answer.append(f"{plan.experiment.name}: {point}{of}: {', '.join(values) or 'done'}")
    return answer or [f"{plan.experiment.name}: no run is done"]


def tables(plan: Plan) -> list["RenderableType"]:
    """A table of the runs of each group."""
    results, done = _done(plan)
    parts: list[RenderableType] = []
    for group in dict.fromkeys(run.group for run in done):
        runs = [run for run in done if run.group == group]
        title = group if len(plan.experiment.groups) > 1 else ""
        parts += _table(title, runs, results)
        if (checks := _checks(runs)) != "-":
            parts.append(f"  checks: {checks}")
    return parts


def _done(plan: Plan) -> tuple[Results, list[Run]]:
    """The runs of a plan that have numbers, without controls."""
    results = of_journals([plan.journal])
    recorded = {run.id: run for run in results.runs}
    chosen = [recorded[run.id] for run in plan.runs if run.id in recorded]
    return results, [run for run in chosen if run.done and run.rounds and not run.spec.control]


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
        fits += f", {run.parameters / 1e6:,.1f} million parameters"
    return {
        "step": known(run.step_s, text.seconds),
        "throughput": known(run.throughput, text.number),
        **{name: over(changed) for name, changed in _BASES.items()},
        "idle": known(run.idle_over_total, "{:.0%}".format),
        "peak": known(2**30 * run.peak_gib_max, text.size),
        "fits": fits,
        "quality": _quality([run]),
        "rounds": f"{rounds}, in turn" if run.in_turn else rounds,
    }


def _quality(runs: Sequence[Run]) -> str:
    """The quality on test data, from the worst to the best of several trainings."""
    for name, form in _QUALITIES.items():
        found = [run.newest.get("metrics", {}).get(name) for run in runs]
        if values := [value for value in found if value is not None]:
            ends = dict.fromkeys(form.format(value) for value in (min(values), max(values)))
            return " to ".join(ends)
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


def _table(title: str, runs: Sequence[Run], results: Results) -> list["RenderableType"]:
    """Runs, a row each, below what they have in common.

    The settings in which they differ are columns. A column of unknown values is left out.
    """
    first, various = runs[0].spec, all_varied([run.spec for run in runs])
    common = {"model": first.model, "fidelity": first.fidelity, "N": f"N={first.N}"}
    common["checkpoint"] = f"recompute {first.checkpoint}"
    words = [title] if title not in ("", slug(first.model)) else []
    words += [word for field, word in common.items() if field not in various]
    units = {run.unit for run in runs}
    titles = {**_TITLES, "throughput": units.pop() if len(units) == 1 else "examples/s"}
    settings = _settings(various)
    rows = []
    for run in runs:
        row = {"K": str(run.K), "M": str(run.M)}
        row |= {name: _setting(run.spec, name) for name in settings} | _numbers(run, results)
        rows.append({titles.get(name, name): cell for name, cell in row.items()})
    left = [titles.get(name, name) for name in (*settings, "fits")]
    table = table_of(rows, left, wrapped=[*_BASES])
    texts = [*(str(column.header) for column in table.columns)]
    texts += [cell for row in rows for cell in row.values()]
    marks = [f"  {what}" for mark, what in _MARKS.items() if any(mark in each for each in texts)]
    return [f"\n{', '.join(words)}", table, *marks]


def _settings(various: Sequence[str]) -> list[str]:
    own = [name for name in various if name not in _NOT_VARIED | _OF_METHOD]
    return own if _OF_METHOD.isdisjoint(various) else ["method", *own]


def _setting(spec: RunSpec, name: str) -> str:
    value = spec.model_args[name] if name in spec.model_args else getattr(spec, name, None)
    if value is None:
        return "-"
    if name == "link":
        return f"{text.number(8e-9 * value.bytes_per_second)} Gbit/s"
    if isinstance(value, tuple):
        return "+".join(map(str, value))
    return short(value, 24, quote=not str(value).isprintable())
