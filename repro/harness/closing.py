"""What `repro run` ends with: a table of results for each group of an experiment.

Of an exhibit of the paper it has one line for each model and fidelity: the widest run. The results
are read back from the records, so a second start, which measures nothing, ends with the same lines.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import ceil, isnan, nan
from typing import TYPE_CHECKING, Any

from repro.harness import contention, text
from repro.harness.plan import Plan
from repro.harness.results import Results, Run, of_journals
from repro.harness.spec import PLAIN, SLOWED, TIMED, RunSpec, slug
from repro.harness.terminal import table_of
from repro.harness.vary import all_varied
from repro.io.untrusted import short

if TYPE_CHECKING:
    from rich.console import RenderableType

BASES: dict[str, dict[str, Any]] = {"over plain": PLAIN, "over K=1": {"K": 1}}
# What the paper divides by: Table 2 by K=2 and M=1, Table 3 by K=2.
_OF_THE_PAPER = {**BASES, "over K=2, M=1": {"K": 2, "M": 1}, "over K=2": {"K": 2}}
_OF_EXHIBIT = ("model", "fidelity", "N")  # the settings that are columns there
# Fields that always have a column, or that say nothing about a timed step.
_NOT_VARIED = {"K", "M", "task", "memory", "stretch", "figures", "steps", "warmup", "trace"}
_OF_METHOD = {"library", "schedule", "stages_per_rank", "zero"}  # one column, the method's name
# How a model is trained: of runs that differ in these alone one is the fastest.
_WAYS = {*_OF_METHOD, *PLAIN, "stretch"}
_TITLES = {"checkpoint": "recompute"}
_QUALITIES = {"bleu": "BLEU {:.2f}", "accuracy": "accuracy {:.1%}"}  # on test data
_WIDTHS = (0.1, 0.05, 0.03, 0.02, 0.01)  # half-widths of intervals that a user may want
_MARKS = {
    "over plain": "over plain: throughput over that of plain training, K=1 and M=1 without "
    "recomputation; [95 % interval over blocks]",
    "over K=": "over K=...: throughput over that of the same run at that K and M",
    "BLEU nan": "BLEU nan: not defined, as no reference of a language has four words",
    " ~": "~: the interval spans 1, no difference is shown",
    "in turn": "in turn: measured alone, not step against step",
    " busy": f"busy: other processes took more than {contention.BUSY:.0%} of the usable cores; "
    "--force measures those rounds again",
}


def closing(plan: Plan) -> list["RenderableType"]:
    """The parts of the answer for one experiment; none if nothing was measured."""
    results, experiment = of_journals([plan.journal]), plan.experiment
    recorded = {run.id: run for run in results.runs}
    shown = [recorded[run.id] for run in plan.runs if run.id in recorded and not run.spec.control]
    done = [run for run in shown if run.done and (run.fit or not isnan(run.step_s))]
    parts: list[RenderableType] = []
    if experiment.paper or experiment.neurips:
        widest: dict[tuple[str, str], Run] = {}
        for run in done:
            # The first group of a model is what the exhibit is about; later ones vary it.
            before = widest.setdefault((run.model, run.fidelity), run)
            if before.group == run.group and (run.K, run.M) > (before.K, before.M):
                widest[run.model, run.fidelity] = run
        title = experiment.paper or f"NeurIPS {experiment.neurips}"
        parts += _table(title, [*widest.values()], results, exhibit=True)
    else:
        for group in dict.fromkeys(run.group for run in done):
            members = [run for run in done if run.group == group]
            title = group if len(experiment.groups) > 1 else ""
            parts += _table(title, members, results, exhibit=False)
            parts += _fastest(members, results)
            parts += _narrower(members, results)
    parts += _controls(results, {run.id for run in plan.runs})
    parts += [line for run in shown for line in _checks(run)]
    not_done = Counter(run.status for run in shown if not run.done)
    if not_done:
        counts = ", ".join(f"{number} x {status}" for status, number in not_done.items())
        parts.append(f"  not measured: {counts}")
    if plan.accumulate and any("devices" in status for status in not_done):
        parts.append(
            f"  this machine has devices for {plan.machine.count} stages: choose a smaller K, "
            "another machine, or `repro simulate`"
        )
    return parts


def numbers(run: Run, results: Results, bases: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
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
    metrics = {n: nan if v is None else v for n, v in run.newest.get("metrics", {}).items()}
    known_of = [form.format(metrics[name]) for name, form in _QUALITIES.items() if name in metrics]
    return {
        "step": known(run.step_s, text.seconds),
        "throughput": known(run.throughput, text.number),
        **{name: over(changed) for name, changed in bases.items()},
        "idle": known(run.idle_over_total, "{:.0%}".format),
        "peak": known(2**30 * run.peak_gib_max, text.size),
        "fits": fits,
        "quality": next(iter(known_of), "-"),
        "rounds": f"{rounds}, in turn" if run.in_turn else rounds,
    }


def _table(
    title: str, runs: Sequence[Run], results: Results, *, exhibit: bool
) -> list["RenderableType"]:
    """Runs, a row each, below what they have in common.

    The settings in which they differ are columns. A column of unknown values is left out.
    """
    if not runs:
        return []
    first, various = runs[0].spec, all_varied([run.spec for run in runs])
    bases = _OF_THE_PAPER if exhibit else BASES
    differing = [n for n in _OF_EXHIBIT if n in various] if exhibit else _settings(various)
    common = {"model": first.model, "fidelity": first.fidelity, "N": f"N={first.N}"}
    common["checkpoint"] = f"recompute {first.checkpoint}"
    words = [title] if title not in ("", slug(first.model)) else []
    words += [word for field, word in common.items() if field not in various]
    units = {run.unit for run in runs}
    titles = {**_TITLES, "throughput": units.pop() if len(units) == 1 else "examples/s"}
    lines = []
    for run in runs:
        line = {"K": str(run.K), "M": str(run.M)}
        line |= {name: _setting(run.spec, name) for name in differing}
        line |= numbers(run, results, bases)
        lines.append({titles.get(name, name): text for name, text in line.items()})
    left = [titles.get(name, name) for name in (*differing, "fits")]
    table = table_of(lines, left, wrapped=[*bases])
    shown = [str(column.header) for column in table.columns]
    every = [*shown, *(cell for line in lines for cell in line.values())]
    marks = [f"  {says}" for mark, says in _MARKS.items() if any(mark in cell for cell in every)]
    return [f"\n{', '.join(words)}", table, *marks]


def _settings(various: Sequence[str]) -> list[str]:
    own = [name for name in various if name not in _NOT_VARIED | _OF_METHOD]
    return own if _OF_METHOD.isdisjoint(various) else ["method", *own]


def _fastest(runs: Sequence[Run], results: Results) -> list[str]:
    """Which run is fastest, if all train one model and the rounds show it."""
    # A list of layer counts fits one K alone.
    same = _WAYS | {"balance"} if any(isinstance(r.spec.balance, tuple) for r in runs) else _WAYS
    various = all_varied([run.spec for run in runs])
    # A cost model may have chosen another N than the spec's.
    if len(runs) < 2 or {*various} - same or len({run.N for run in runs}) > 1:
        return []

    def named(run: Run) -> str:
        others = [f"{_TITLES.get(n, n)} {_setting(run.spec, n)}" for n in _settings(various)]
        return ", ".join([f"K={run.K}", f"M={run.M}", *others])

    first, second = sorted(runs, key=lambda run: -run.throughput)[:2]
    if first.fidelity not in TIMED:  # the same every time
        return [f"  fastest: {named(first)}"]
    value, low, high, _ = results.ratio(first, second)
    over = f"{text.ratio(value, low, high)} over the next, {named(second)}"
    return [f"  fastest: {named(first)}, {over}"] if low > 1 else []


def _narrower(runs: Sequence[Run], results: Results) -> list[str]:
    """How many more blocks the widest interval of a ratio needs for a width that is wanted."""
    found = [
        ((high - low) / 2 / value, len(run.rounds), name)
        for name, changed in BASES.items()
        for run in runs
        for value, low, high in [results.speedup(run, **changed)]
        if low < high
    ]
    width, rounds, name = max(found, default=(0.0, 0, ""))
    goal = next((goal for goal in _WIDTHS if goal < width), None)
    if goal is None:
        return []
    # An interval of twice as many independent rounds is narrower by the square root of two.
    more = ceil(rounds * ((width / goal) ** 2 - 1))
    blocks = more * max(run.spec.steps for run in runs)
    return [
        f"  widest interval {name}: ±{width:.1%}; ±{goal:.0%} takes about {blocks} more blocks: "
        f"--rounds {rounds + more}"
    ]


def _controls(results: Results, planned: set[str]) -> list[str]:
    """What the measurement can tell apart: a run again, and one that sleeps for a part of it."""
    found: dict[str, list[tuple[float, float, float]]] = {}
    for run, (value, low, high, _) in results.controls():
        if run.id in planned and not isnan(low):
            found.setdefault(str(run.spec.control), []).append((value, low, high))
    words = {"again": "a run beside itself", "slowed": f"with {SLOWED:.0%} of its step slept away"}
    return [
        f"  control, {words[control]}: step {', '.join(text.ratio(*each) for each in ratios)}"
        for control, ratios in found.items()
    ]


def _checks(run: Run) -> list[str]:
    """Whether a library trains as the unsplit model, where a run checks that."""
    checks = run.newest.get("checks", {})
    found = ", ".join(f"{name}: {check['verdict']}" for name, check in checks.items())
    return [f"  {run.id}: {found}"] if found else []


def _setting(spec: RunSpec, name: str) -> str:
    value = spec.model_args[name] if name in spec.model_args else getattr(spec, name, None)
    if value is None:
        return "-"
    if name == "link":
        return f"{text.number(8e-9 * value.bytes_per_second)} Gbit/s"
    if isinstance(value, tuple):
        return "+".join(map(str, value))
    return short(value, 24, quote=not str(value).isprintable())
