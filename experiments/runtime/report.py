"""What the runtime costs: the experiment `runtime` against arithmetic, as tables, a figure and a sentence.

Its layers wait for a known time, one layer a stage, so the best possible step is known as well:
(M+K-1)F + M(R+B) + (K-1)B with early recompute (section 2.3 of arXiv:1811.06965v5). What is above
it is overhead.
"""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import nan
from typing import TYPE_CHECKING, Any

from experiments.runtime.runs import KNOWN_DURATIONS, MESSAGE_SIZE, NAME, NO_OP
from repro.gpipe.schedule.kinds import make_schedule
from repro.gpipe.schedule.replay import replay
from repro.harness.results import Results, Run
from repro.harness.statistics import interval
from repro.paper import theory
from repro.report.compare import matching, rows_of, where
from repro.report.grid import (
    Cell,
    Column,
    amount,
    declared,
    estimate,
    plain,
    settings,
    share,
    spread,
)
from repro.report.ratio import NO_INTERVAL, Ratio
from repro.report.rounds import Spread, schedule_of
from repro.report.style import MARKERS, PARTS, grid, ticks
from repro.report.table import NOT_RUN, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


SPAN_GOAL = 5  # microseconds
FOLDED = ("runtime_points*",)
_EXPECTED = ("computation", "recompute", "bubble")  # the parts that arithmetic has
_COLOURS = {"auto": "#8B5E00", "shm": "#56B4E9", "gloo": "#222222"}  # none of them a part's
_MARKS = f"[low, high]: bootstrap 95 % interval over rounds, {NO_INTERVAL}."


@dataclass(frozen=True)
class Optimum:
    """The best step of stages of known duration: seconds by arithmetic and by replay, shares of K x step time."""

    step_s: float
    replayed_s: float
    shares: dict[str, float]


def optimum(results: Results, row: Run) -> Optimum:
    """Arithmetic for one run of the experiment: one timed layer a stage, "gpipe", recompute always."""
    spec = row.spec
    K, M = spec.K, spec.M
    F, B = float(spec.model_args["forward_s"]), float(spec.model_args["backward_s"])
    step = theory.step_time(K, M, "early", F, F, B)
    walked = replay(
        make_schedule(spec.schedule, K, M, spec.checkpoint),
        lambda action: B if action.kind == "B" else F,
    )
    shares = dict.fromkeys(PARTS, 0.0) | {
        "computation": M * (F + B) / step,
        "recompute": M * F / step,
    }
    shares["bubble"] = theory.bubble(K, M, "early", F, F, B)
    return Optimum(step, walked.step_time, shares)


def tables(results: Results) -> list[Table]:
    """Both tables, with status words where runs are missing; none if the experiment was never planned."""
    if not rows_of(results, experiment=NAME):
        return []
    return [known_durations(results), engine_overhead(results)]


def known_durations(results: Results) -> Table:
    """Step, overhead, bubble and breakdown of each run of known duration, emulated beside arithmetic."""

    def part_of(row: Run, part: str) -> Cell:
        return share(interval([line.breakdown.get(part, nan) for line in row.rounds])[0])

    def expected(row: Run, part: str) -> Cell:
        return share(optimum(results, row).shares[part])

    columns: list[Column[Run]] = [
        Column("where", lambda row: plain(where(results, row))),
        *settings(lambda row: row, "K", "M"),
        Column(
            "F (ms)",
            lambda row: plain(f"{1e3 * row.spec.model_args['forward_s']:g}"),
        ),
        *settings(lambda row: row, "status"),
        Column("rounds", lambda row: plain(len(row.rounds))),
        Column(("step (ms)", "emulated"), lambda row: amount(1e3 * row.step_s, 1)),
        Column(
            ("step (ms)", "arithmetic"), lambda row: amount(1e3 * optimum(results, row).step_s, 1)
        ),
        Column(
            ("step (ms)", "replay, simulated"),
            lambda row: amount(1e3 * optimum(results, row).replayed_s, 1),
        ),
        spread(("overhead (%)", "emulated"), lambda row: estimate(_excess(results, row))),
        Column(("idle/total", "emulated"), lambda row: share(row.bubble_idle_over_total)),
        Column(("idle/total", "arithmetic"), partial(expected, part="bubble")),
    ]
    for part in sorted(PARTS, key=lambda part: part not in _EXPECTED):
        columns.append(Column((part, "emulated"), partial(part_of, part=part)))
        columns += [Column((part, "arithmetic"), partial(expected, part=part))] * (
            part in _EXPECTED
        )
    note = (
        "Arithmetic: (M+K-1)F + M(R+B) + (K-1)B; replay: the schedule on a virtual clock. "
        f"Overhead: the step over arithmetic, minus 1; median over rounds. {_MARKS} The parts are "
        "shares of K x step; of update, setup, imbalance and transfer arithmetic has none. "
        "Idle/total counts all that is no work, bubble what equal stages would wait without the "
        "runtime."
    )
    title = "Stages of known duration: the runtime against arithmetic"
    rows = rows_of(results, experiment=NAME, group=KNOWN_DURATIONS)
    return declared("runtime_known_durations", title, note, rows, columns, NAME)


@dataclass(frozen=True)
class NoOp:
    """Runs of layers that do nothing at one K and M: microseconds of their steps by round, traced and untraced."""

    row: Run
    status: str
    actions: int  # of one stage in a step
    traced: dict[str, float]
    untraced: dict[str, float]

    def per_span(self) -> Spread:
        """The engine adds a span for the set-up and one for the update."""
        common = sorted(self.traced.keys() & self.untraced.keys())
        return interval([(self.traced[r] - self.untraced[r]) / (self.actions + 2) for r in common])


def no_op(results: Results) -> list[NoOp]:
    """Every K and M of every place."""
    pairs: dict[tuple[Any, ...], dict[bool, Run]] = {}
    for row in rows_of(results, experiment=NAME, group=NO_OP):
        key = (row.place, row.K, row.M)
        pairs.setdefault(key, {})[row.spec.trace] = row
    made = []
    for pair in pairs.values():
        row = next(iter(pair.values()))
        words = dict.fromkeys(
            pair[trace].status if trace in pair else NOT_RUN for trace in (True, False)
        )
        lines = [pair[trace].rounds if trace in pair else [] for trace in (True, False)]
        steps = [{line.name: 1e6 * line.step_s for line in some} for some in lines]
        made.append(NoOp(row, ", ".join(words), len(schedule_of(results, row).work(0)), *steps))
    return made


def engine_overhead(results: Results) -> Table:
    """Microseconds per action of layers that do nothing, traced and not, and per span: the difference."""

    def per_action(line: NoOp, steps: dict[str, float]) -> Cell:
        return estimate(interval([step / line.actions for step in steps.values()]))

    columns: list[Column[NoOp]] = [
        Column("where", lambda line: plain(where(results, line.row))),
        *settings(lambda line: line.row, "K", "M"),
        Column("actions", lambda line: plain(line.actions)),
        Column("status", lambda line: plain(line.status)),
        Column("rounds", lambda line: plain(len(line.row.rounds))),
        spread(("per action", "traced, emulated"), lambda line: per_action(line, line.traced)),
        spread(("per action", "untraced, emulated"), lambda line: per_action(line, line.untraced)),
        spread(("per span", "emulated"), lambda line: estimate(line.per_span())),
    ]
    note = (
        "Layers that do nothing; the step over the actions (F, R and B) of one stage. With K > 1 "
        "an action also waits for its message. Per span: what a traced step takes longer than an "
        "untraced one of the same round, over the spans of one stage; the goal is at most "
        f"{SPAN_GOAL}. {_MARKS}"
    )
    title = "Engine overhead: microseconds per action and per span"
    return declared("runtime_engine_overhead", title, note, no_op(results), columns, NAME)


def figures(results: Results, rows: list[Run]) -> "Iterator[tuple[str, Figure | None, str]]":
    """The one that there is, with its caption."""
    yield "overhead", figure(results, rows), caption(results, rows)


def figure(results: Results, rows: list[Run]) -> "Figure | None":
    """Overhead against message size, a line for each transport, and the parts of the step that it went into."""
    found = _messages(results, rows)
    if not found:
        return None
    drawn, ((left, right),) = grid(1, 2, 3.6)
    lines = {(where(results, row), _transport(results, row)): None for row in found}
    several = len({place for place, _ in lines}) > 1
    for place, transport in lines:
        some = [
            row
            for row in found
            if (where(results, row), _transport(results, row)) == (place, transport)
        ]
        _line(left, results, some, transport, f"{transport}, {place}" if several else transport)
    sizes = sorted({_bytes(results, row) for row in found})
    left.set_xscale("log", base=2)
    ticks(left, sizes, [_size(size) for size in sizes])
    left.set_ylim(bottom=min(0, left.get_ylim()[0]))
    left.set(
        xlabel="message", ylabel="overhead (%), emulated", title="step over the optimum, minus 1"
    )
    left.legend(loc="upper left")
    _parts(right, results, found)
    drawn.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=len(PARTS))
    return drawn


def _line(axes: "Axes", results: Results, rows: list[Run], transport: str, label: str) -> None:
    """One transport's overhead with intervals; without one where there are few rounds."""
    spreads = [_excess(results, row) for row in rows]
    middles = [middle for middle, _, _ in spreads]
    errors = [
        [m - low if low == low else 0 for m, low, _ in spreads],
        [h - m if h == h else 0 for m, _, h in spreads],
    ]
    at = [_bytes(results, row) for row in rows]
    axes.errorbar(
        at, middles, errors, marker=MARKERS["emulated"], color=_COLOURS[transport], label=label
    )


def _parts(axes: "Axes", results: Results, rows: list[Run]) -> None:
    """For each size and transport the overhead as a bar of its parts, mean over rounds; what is below 0 to the left."""
    up, down = [0.0] * len(rows), [0.0] * len(rows)
    parts = [_excess_parts(results, row) for row in rows]
    for part, colour in PARTS.items():
        values = [found[part] for found in parts]
        starts = [u if value >= 0 else d for value, u, d in zip(values, up, down, strict=True)]
        axes.barh(range(len(rows)), values, left=starts, color=colour, label=part, height=0.72)
        up = [u + max(value, 0) for value, u in zip(values, up, strict=True)]
        down = [d + min(value, 0) for value, d in zip(values, down, strict=True)]
    names = [f"{_size(_bytes(results, row))}, {_transport(results, row)}" for row in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.axvline(0, color="#222222", linewidth=0.8)
    axes.grid(axis="y", visible=False)
    axes.set(xlabel="overhead (%), emulated, mean over rounds", title="where it goes")


def _excess_parts(results: Results, row: Run) -> dict[str, float]:
    """Each part's excess over arithmetic in percent of the optimum step; they add up to the overhead."""
    best = optimum(results, row)
    return {
        part: statistics.fmean(
            100 * (line.breakdown[part] * line.step_s / best.step_s - best.shares[part])
            for line in row.rounds
        )
        for part in PARTS
    }


def caption(results: Results, rows: list[Run]) -> str:
    """What the figure shows, and what shared memory wins over gloo at the largest message, if it does."""
    found = _messages(results, rows)
    places = dict.fromkeys(where(results, row) for row in found)
    said = [
        _wins(results, [row for row in found if where(results, row) == place]) for place in places
    ]
    named = [
        f"{place}: {words}" if len(said) > 1 else words
        for place, words in zip(places, said, strict=True)
    ]
    return " ".join(
        [
            "Overhead over the optimum step against message size, and the parts of the step it "
            "is in.",
            *named,
        ]
    )


def _wins(results: Results, rows: list[Run]) -> str:
    pairs: dict[int, dict[str, Run]] = {}
    for row in rows:
        pairs.setdefault(_bytes(results, row), {})[_transport(results, row)] = row
    size = max(
        (size for size, pair in pairs.items() if {"shm", "gloo"} <= pair.keys()), default=None
    )
    if size is None:
        return (
            "What shared memory wins over gloo is not known: no message size was measured with "
            "both."
        )
    ours, base = pairs[size]["shm"], pairs[size]["gloo"]
    found = Ratio(*results.ratio(ours, base), baseline="gloo")
    place = f"At {_size(size)} (K={ours.K}, M={ours.M})"
    numbers = (
        f"gloo's step over that of shared memory, within rounds: {str(found).removesuffix(' ~')}"
    )
    match found.verdict:
        case "faster":
            return (
                f"{place} shared memory makes the step {100 * (1 - 1 / found.value):.1f} % shorter "
                f"({numbers})."
            )
        case "slower":
            return (
                f"{place} shared memory makes the step {100 * (1 / found.value - 1):.1f} % longer "
                f"({numbers})."
            )
        case "no difference shown":
            return f"{place} shared memory shows no difference from gloo ({numbers})."
        case _:
            return (
                f"{place} the rounds are too few to say whether shared memory wins over gloo "
                f"({numbers})."
            )


def _messages(results: Results, rows: list[Run]) -> list[Run]:
    """Finished runs of the message sizes, the smallest first."""
    found = matching(rows, experiment=NAME, group=MESSAGE_SIZE, status="done")
    return sorted(
        found, key=lambda row: (where(results, row), _bytes(results, row), _transport(results, row))
    )


def _excess(results: Results, row: Run) -> Spread:
    """Overhead in percent of the optimum step."""
    best = optimum(results, row).step_s
    return interval([100 * (line.step_s / best - 1) for line in row.rounds])


def _bytes(results: Results, row: Run) -> int:
    """Bytes of one message: a micro-batch of float32 numbers."""
    spec = row.spec
    return 4 * spec.model_args["elements"] * spec.N // spec.M


def _transport(results: Results, row: Run) -> str:
    return row.spec.transport


def _size(count: int) -> str:
    return f"{count / 2**20:g} MiB" if count >= 2**20 else f"{count / 2**10:g} KiB"
