"""How long a pipeline takes to fill, and what one slow stage costs: two more questions of the experiment bubble."""

from math import isnan, nan
from typing import Any

from experiments.bubble.idle import NAME, TIMED, Points, points
from repro.gpipe.schedule.timeline import Timeline
from repro.harness.results import Results, Run
from repro.paper import theory
from repro.report.compare import NO_INTERVAL, rows_of
from repro.report.rounds import costs, schedule_of, spread, spread_numbers, step_over
from repro.report.table import NOT_RUN, Table, framed, number, percent
from repro.simulate import simulate

Pair = tuple[dict[Any, Any], dict[Any, Any]]


def tables(results: Results) -> list[Table]:
    """Both; none if the experiment was never planned."""
    return [slow(results), fill(results)] if rows_of(results, experiment=NAME) else []


def filling(timeline: Timeline) -> float:
    """Seconds from the first F on any stage until the last stage begins its first."""
    starts = {
        j: min((span.start for span in timeline.on(j) if span.kind == "F"), default=nan)
        for j in range(timeline.stages)
    }
    return starts[timeline.stages - 1] - min(starts.values())


def walked(results: Results, row: Run) -> Timeline | None:
    """The step of a run: recorded, else of a simulated one walked again from its recorded costs."""
    if row.status != "done":
        return None
    if row.fidelity == "simulated" and (stages := costs(results, row)) is not None:
        return simulate(schedule_of(results, row), stages)
    return results.timeline(row)


def fill(results: Results) -> Table:
    """Latency until the last stage has something to do, over the step."""
    found = points(results)
    pairs = [
        _fill(results, one, at, len(found) > 1)
        for one in found
        for at in sorted({at for fidelity in TIMED for at in one.equal.get(fidelity, {})})
    ]
    note = (
        "From the first stage's first F until the last stage's, over the step; set-up before it "
        "is left out. Theory: (K-1)F over the early form's step, F:R:B = 1:1:2. Emulated: the "
        "recorded step of median length, with messages and processes that take time."
    )
    title = "How long a pipeline takes to fill"
    return framed("bubble_fill", title, note, pairs, NAME, folded=True)


def _fill(results: Results, one: Points, at: tuple[int, int], several: bool) -> Pair:
    K, M = at
    head = ({("", "where"): one.place} if several else {}) | {("", "K"): K, ("", "M"): M}
    values = {("theory", "of the step"): (K - 1) / theory.step_time(K, M, "early")}
    for fidelity in TIMED:
        row = one.equal.get(fidelity, {}).get(at)
        timeline = walked(results, row) if row else None
        seconds = filling(timeline) if timeline else nan
        values[fidelity, "of the step"] = seconds / timeline.step_time if timeline else nan
        values[fidelity, "ms"] = 1e3 * seconds
    shown = {
        key: number(value, 1) if key[1] == "ms" else percent(value) for key, value in values.items()
    }
    return head | shown, head | values


def position(K: int, stage: int) -> str:
    """Which stage is slow, in words."""
    word = {0: "first", K - 1: "last"}.get(stage, "middle")
    return f"{word} (stage {stage})"


def slow(results: Results) -> Table:
    """The step with one slow stage over that of equal stages."""
    found = points(results)
    pairs = [
        _slow(results, one, at, len(found) > 1)
        for one in found
        for at in sorted({at for rows in one.slow.values() for at in rows})
    ]
    note = (
        "One stage's F, R and B take so many times as long as the others'. Step over the step of "
        "equal stages with the same K and M, emulated within rounds; [low, high]: bootstrap 95 % "
        f"interval, {NO_INTERVAL}, ~ where it spans 1. Slowest: what a synchronous pipeline, whose "
        "stages all wait for the slowest, tends to as M grows; at a finite M filling and emptying "
        "take the other stages' time too. Mean: the same work cut evenly, what a perfect balance "
        "would give. Simulated waits are on a virtual clock, emulated ones of real processes."
    )
    title = "What one slow stage costs"
    return framed("bubble_slow", title, note, pairs, NAME)


def factor(results: Results, row: Run) -> float:
    """How many times as long the slow stage takes."""
    forward = row.spec.model_args["forward_s"]
    return max(forward) / min(forward)


def _slow(results: Results, one: Points, at: tuple[int, int, int], several: bool) -> Pair:
    K, M, stage = at
    rows = {fidelity: found[at] for fidelity, found in one.slow.items() if at in found}
    times = factor(results, next(iter(rows.values())))
    head = {("", "where"): one.place} if several else {}
    head |= {
        ("", "slow stage"): position(K, stage),
        ("", "K"): K,
        ("", "M"): M,
        ("", "times"): f"{times:g}",
    }
    bounds = {("bounds", "mean"): (K - 1 + times) / K, ("bounds", "slowest"): times}
    shown: dict[Any, Any] = dict(head)
    data: dict[Any, Any] = dict(head)
    for fidelity in TIMED:
        row, base = rows.get(fidelity), one.equal.get(fidelity, {}).get((K, M))
        over = step_over(results, row, base)
        done = row is not None and row.status == "done"
        word = (
            spread(over)
            if done
            else NOT_RUN
            if row is None or row.status == "planned"
            else row.status
        )
        idle = row.bubble_idle_over_total if row is not None and done else nan
        shown |= {(fidelity, "step over step"): word, (fidelity, "idle/total"): percent(idle)}
        if fidelity == "emulated":
            shown[fidelity, "rounds"] = data[fidelity, "rounds"] = (
                len(row.rounds) if row is not None else 0
            )
        data |= spread_numbers(fidelity, "step over step", over) | {(fidelity, "idle/total"): idle}
    return shown | {key: number(value, 3) for key, value in bounds.items()}, data | bounds


def middle(one: Points, fidelity: str) -> Run | None:
    """A finished run whose slow stage is neither the first nor the last; else any slow one."""
    rows = {at: row for at, row in one.slow.get(fidelity, {}).items() if row.status == "done"}
    inner = [row for (K, _, stage), row in rows.items() if 0 < stage < K - 1]
    return next(iter([*inner, *rows.values()]), None)


def caption(results: Results, row: Run, over: float) -> str:
    """Of the picture of one slow stage."""
    forward = row.spec.model_args["forward_s"]
    words = (
        f"One stage of {len(forward)} takes {factor(results, row):g} times as long ({row.fidelity})"
    )
    return words + ("." if isnan(over) else f": the step is {over:.2f} times that of equal stages.")
