"""What the runtime costs: steps of known duration against arithmetic, and engine overhead.

Its layers wait for a known time, one layer a stage, so the best possible step is known as well:
(M+K-1)F + M(R+B) + (K-1)B with early recompute (section 2.3 of arXiv:1811.06965v5). What is above
it is overhead.
"""

from collections.abc import Mapping
from functools import partial
from math import nan
from typing import NamedTuple

from experiments.runtime.figures import figures as figures
from experiments.runtime.optimum import optimal_shares, optimal_step, overhead
from experiments.runtime.runs import GOALS, KNOWN_DURATIONS, NAME, NO_OP, SPAN_GOAL
from repro.harness.results import Results, Run
from repro.harness.statistics import interval
from repro.report.compare import rows_of, where
from repro.report.declared import Shown
from repro.report.grid import (
    Cell,
    Column,
    Grid,
    amount,
    declared,
    estimate,
    met_or_missed,
    plain,
    settings,
    share,
    spread,
)
from repro.report.ratio import NO_INTERVAL
from repro.report.rounds import Spread
from repro.report.style import PARTS
from repro.report.table import EMPTY, NOT_RUN, Table

_EXPECTED = ("computation", "recompute", "bubble")  # the parts that arithmetic has
_INTERVAL = f"[low, high] is a bootstrap 95 % interval over rounds ({NO_INTERVAL})"
SHOWN = Shown(
    "runtime_known_durations",
    (
        "K",
        "M",
        "F (ms)",
        "step (ms) emulated",
        "step (ms) arithmetic",
        "overhead (%) emulated",
        "overhead (%) goal",
    ),
)


def tables(results: Results) -> list[Table]:
    if not rows_of(results, experiment=NAME):
        return []
    return [known_durations(results), engine_overhead(results)]


def answer(tables: Mapping[str, Table]) -> str:
    table = tables["runtime_known_durations"]
    overheads = table.numbers("overhead (%) emulated")
    goals = [text for text in table.shown["overhead (%)", "goal"] if text not in ("", EMPTY)]
    missed = sum("missed" in text for text in goals)
    return (
        f"A step of stages of known duration takes between {overheads[0]} % and {overheads[-1]} % "
        f"longer than arithmetic says; {missed} of {len(goals)} goals are missed."
    )


def known_durations(results: Results) -> Table:
    """Step, overhead, its goal, bubble and breakdown of each run, beside arithmetic."""

    def goal(run: Run) -> Cell:
        percent = GOALS.get((run.spec.model_args["forward_s"], run.K, run.M))
        return Cell() if percent is None else met_or_missed(overhead(run)[0], at_most=percent)

    def part_of(run: Run, part: str) -> Cell:
        return share(interval([round_.breakdown.get(part, nan) for round_ in run.rounds])[0])

    def expected(run: Run, part: str) -> Cell:
        return share(optimal_shares(run)[part])

    columns: list[Column[Run]] = [
        Column("where", lambda run: plain(where(results, run))),
        *settings(lambda run: run, "K", "M"),
        Column("F (ms)", lambda run: plain(f"{1e3 * run.spec.model_args['forward_s']:g}")),
        *settings(lambda run: run, "status"),
        Column("rounds", lambda run: plain(len(run.rounds))),
        Column(("step (ms)", "emulated"), lambda run: amount(1e3 * run.step_s, 1)),
        Column(("step (ms)", "arithmetic"), lambda run: amount(1e3 * optimal_step(run), 1)),
        spread(("overhead (%)", "emulated"), lambda run: estimate(overhead(run))),
        Column(("overhead (%)", "goal"), goal),
        Column(("idle/total", "emulated"), lambda run: share(run.bubble_idle_over_total)),
        Column(("idle/total", "arithmetic"), partial(expected, part="bubble")),
    ]
    for part in _EXPECTED:
        columns.append(Column((part, "emulated"), partial(part_of, part=part)))
        columns.append(Column((part, "arithmetic"), partial(expected, part=part)))
    columns += [
        Column((part, "emulated"), partial(part_of, part=part))
        for part in PARTS
        if part not in _EXPECTED
    ]
    note = (
        "Arithmetic is (M+K-1)F + M(R+B) + (K-1)B; the overhead is the step over that, minus 1, "
        f"and its median is held against the goal. {_INTERVAL}; the parts are shares of K x step."
    )
    title = "Stages of known duration: the runtime against arithmetic"
    rows = rows_of(results, experiment=NAME, group=KNOWN_DURATIONS)
    return declared("runtime_known_durations", title, note, rows, columns, NAME)


class Point(NamedTuple):
    where: str
    K: int
    M: int

    @property
    def actions(self) -> int:
        """F, R and B of one stage in a step."""
        return 3 * self.M


def engine_overhead(results: Results) -> Table:
    """Microseconds per action, traced and not, and their difference per span."""
    rows = rows_of(results, experiment=NAME, group=NO_OP)
    grid = Grid.of(rows, lambda run: (*Point(where(results, run), run.K, run.M), run.spec.trace))
    lines = dict.fromkeys(Point(where(results, run), run.K, run.M) for run in rows)

    def run_at(point: Point, trace: bool) -> Run | None:
        return grid.run("emulated", *point, trace)

    def microseconds(point: Point, trace: bool) -> dict[str, float]:
        run = run_at(point, trace)
        return {round_.name: 1e6 * round_.step_s for round_ in run.rounds} if run else {}

    def status(point: Point) -> Cell:
        both = (run_at(point, True), run_at(point, False))
        return plain(", ".join(dict.fromkeys(run.status if run else NOT_RUN for run in both)))

    def rounds(point: Point) -> Cell:
        run = run_at(point, True) or run_at(point, False)
        return plain(len(run.rounds) if run else 0)

    def per_action(point: Point, trace: bool) -> Cell:
        steps = microseconds(point, trace).values()
        return estimate(interval([step / point.actions for step in steps]))

    def span_cost(point: Point) -> Spread:
        traced, untraced = microseconds(point, True), microseconds(point, False)
        common = sorted(traced.keys() & untraced.keys())
        # The engine adds a span for the set-up and one for the update.
        spans = point.actions + 2
        return interval([(traced[name] - untraced[name]) / spans for name in common])

    def goal(point: Point) -> Cell:
        return met_or_missed(span_cost(point)[0], at_most=SPAN_GOAL)

    columns: list[Column[Point]] = [
        Column("where", lambda point: plain(point.where)),
        Column("K", lambda point: plain(point.K)),
        Column("M", lambda point: plain(point.M)),
        Column("actions", lambda point: plain(point.actions)),
        Column("status", status),
        Column("rounds", rounds),
        spread(("per action", "traced, emulated"), partial(per_action, trace=True)),
        spread(("per action", "untraced, emulated"), partial(per_action, trace=False)),
        spread(("per span", "emulated"), lambda point: estimate(span_cost(point))),
        Column(("per span", "goal"), goal),
    ]
    note = (
        "Layers that do nothing: the step over the actions (F, R, B) of one stage, and what "
        f"recording a span adds, whose median is held against the goal. {_INTERVAL}."
    )
    title = "Engine overhead: microseconds per action and per span"
    return declared("runtime_engine_overhead", title, note, lines, columns, NAME)
