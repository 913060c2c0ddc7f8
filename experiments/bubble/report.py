"""The bubble (arXiv:1811.06965v5, section 2.3): closed forms beside recorded steps."""

from collections.abc import Callable, Mapping
from math import ceil, isnan

from experiments.bubble.claims import evidence
from experiments.bubble.figures import figures as figures
from experiments.bubble.points import (
    Point,
    points,
    position,
    runs_by_point,
    step_over,
)
from experiments.bubble.runs import NAME
from repro.claims.all_claims import verdict_on
from repro.claims.cells import NEGLIGIBLE as NEGLIGIBLE_PERCENT
from repro.claims.cells import cell_id
from repro.harness.results import Results, Run
from repro.paper import theory
from repro.report.compare import beside_paper, rows_of, where
from repro.report.declared import Shown
from repro.report.grid import (
    Cell,
    Column,
    Grid,
    amount,
    declared,
    place_column,
    plain,
    quotient,
    share,
    spread,
)
from repro.report.table import EMPTY, Table

_STAGES = (
    "Simulated and emulated stages are equal, with F:R:B = 1:1:2; the measured Transformer's are "
    "not quite."
)
NEGLIGIBLE = NEGLIGIBLE_PERCENT / 100  # of K x step
SHOWN = Shown(
    "bubble_at_4k",
    (
        "K",
        "M",
        "theory plain",
        "simulated early",
        "emulated early",
        f"M for {NEGLIGIBLE:.0%}",
        "negligible?",
    ),
)


def tables(results: Results) -> list[Table]:
    if not rows_of(results, experiment=NAME):
        return []
    return [at_4k(results), idle(results), slow(results)]


def answer(tables: Mapping[str, Table]) -> str:
    table = tables["bubble_at_4k"]
    return (
        "At M = 4K the stages of a simulated step are idle for "
        f"{table.text('simulated early', K='2')} of the time with K=2 and for "
        f"{table.text('simulated early', K='8')} with K=8."
    )


def idle_of(run: Run) -> Cell:
    """Share of K x step in which a stage does nothing."""
    return share(run.bubble_idle_over_total)


def coordinates(points: list[Point]) -> list[Column[Point]]:
    """The columns K and M, and before them the place where there are several."""
    return [
        *place_column(points, lambda point: point.where),
        Column("K", lambda point: plain(point.K)),
        Column("M", lambda point: plain(point.M)),
    ]


PLAIN: Column[Point] = Column(
    ("theory", "plain"), lambda point: share(theory.bubble_over_total(point.K, point.M))
)
EARLY: Column[Point] = Column(
    ("theory", "early"), lambda point: share(theory.bubble(point.K, point.M, "early"))
)


def idle(results: Results) -> Table:
    grid = runs_by_point(results)
    lines = points(results)

    def micro_batches(point: Point) -> Cell:
        marks = {1: " (naive)", 4 * point.K: " (M=4K)"}
        return Cell(point.M, f"{point.M}{marks.get(point.M, '')}")

    def above_early(run: Run) -> Cell:
        excess = 100 * (run.bubble_idle_over_total - theory.bubble(run.K, run.M, "early"))
        return Cell(excess, EMPTY if isnan(excess) else f"{excess:+.1f}")

    def step_over_early(run: Run) -> Cell:
        F, B = run.spec.model_args["forward_s"], run.spec.model_args["backward_s"]
        return amount(run.step_s / theory.step_time(run.K, run.M, "early", F, F, B))

    *head, _ = coordinates(lines)
    columns = [
        *head,
        Column("M", micro_batches),
        PLAIN,
        EARLY,
        _recorded(grid, "simulated", "idle/total", idle_of),
        _recorded(grid, "emulated", "idle/total", idle_of),
        _recorded(grid, "emulated", "above early", above_early),
        _recorded(grid, "emulated", "step over early", step_over_early),
        _recorded(grid, "measured", "idle/total", idle_of),
    ]
    note = (
        f"Plain is (K-1)/(M+K-1); early is 3(K-1)/(4M+3(K-1)), where a stage recomputes before its "
        f"gradient arrives. {_STAGES}"
    )
    title = "Idle/total, the paper's bubble, for K and M (section 2.3)"
    return declared(NAME, title, note, lines, columns, NAME)


def _recorded(grid: Grid, fidelity: str, name: str, cell: Callable[[Run], Cell]) -> Column[Point]:
    """A column with what is said of the run at a point."""
    return Column((fidelity, name), lambda point: grid.cell(cell, fidelity, *point))


def at_4k(results: Results) -> Table:
    """The paper's sentence, one line a K: is the bubble negligible at M = 4K?"""
    grid, late = runs_by_point(results), runs_by_point(results, "gpipe-late")
    lines = [point for point in points(results) if point.M == 4 * point.K]

    ours = evidence(results)

    def least(point: Point) -> Cell:
        M = least_negligible_m(point.K)
        return Cell(M, f"{M}, {M / point.K:.1f} K")

    def negligible(point: Point) -> Cell:
        # The paper's K are 2, 4 and 8.
        identity = cell_id(NAME, f"K={point.K}", "negligible")
        return plain(verdict_on(identity, ours[identity])) if identity in ours else Cell("")

    columns = [
        *coordinates(lines),
        PLAIN,
        EARLY,
        _recorded(grid, "simulated", "early", idle_of),
        _recorded(late, "simulated", "late", idle_of),
        _recorded(grid, "emulated", "early", idle_of),
        _recorded(grid, "measured", "early", idle_of),
    ]
    note = (
        "Idle/total: early, a stage recomputes before its gradient arrives; plain and late, it "
        "waits for it first."
    )
    if not beside_paper(results, NAME):
        return declared("bubble_at_4k", "The bubble at M = 4K", note, lines, columns, NAME)
    columns.append(Column(f"M for {NEGLIGIBLE:.0%}", least))
    columns.append(Column("negligible?", negligible))
    note += (
        f" The paper gives no number for negligible; here it is at most {NEGLIGIBLE:.0%} of K x "
        "step, by the early form."
    )
    title = "Is the bubble negligible at M = 4K? (section 2.3)"
    return declared("bubble_at_4k", title, note, lines, columns, NAME)


def least_negligible_m(K: int, limit: float = NEGLIGIBLE) -> int:
    """The least M at which the early form 3(K-1)/(4M+3(K-1)) is at most `limit`."""
    return ceil(3 * (K - 1) * (1 - limit) / (4 * limit) - 1e-9)


def slow(results: Results) -> Table:
    """The step with one slow stage over that of equal stages."""
    grid = runs_by_point(results)
    lines = points(results, slow=True)

    def step_over_step(run: Run) -> Cell:
        base = grid.run(run.fidelity, *Point(where(results, run), run.K, run.M))
        return Cell() if base is None else quotient(step_over(results, run, base))

    def ratio(fidelity: str) -> Column[Point]:
        column = _recorded(grid, fidelity, "step over step", step_over_step)
        return spread((fidelity, "step over step"), column.cell)

    def mean(point: Point) -> Cell:
        return amount((point.K - 1 + point.slowdown) / point.K, 3)

    columns: list[Column[Point]] = [
        Column("slow stage", lambda point: plain(position(point))),
        *coordinates(lines),
        Column("times", lambda point: plain(f"{point.slowdown:g}")),
        ratio("simulated"),
        _recorded(grid, "simulated", "idle/total", idle_of),
        _recorded(grid, "emulated", "rounds", lambda run: plain(len(run.rounds))),
        ratio("emulated"),
        _recorded(grid, "emulated", "idle/total", idle_of),
        Column(("bounds", "mean"), mean),
        Column(("bounds", "slowest"), lambda point: amount(point.slowdown, 3)),
    ]
    note = (
        "One stage's F, R and B take so many times as long as the others'; its step over the step "
        "of equal stages, inside a round. Bounds: mean is the same work cut evenly, slowest is "
        "what the ratio tends to as M grows."
    )
    return declared("bubble_slow", "What one slow stage costs", note, lines, columns, NAME)
