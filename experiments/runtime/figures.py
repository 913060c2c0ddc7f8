"""Overhead against message size, and the parts of the step that it goes into."""

import statistics
from collections.abc import Iterator
from itertools import groupby
from math import isnan

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.runtime.optimum import optimal_shares, optimal_step, overhead
from experiments.runtime.runs import KIB, MESSAGE_SIZE, MIB, NAME
from repro.harness.results import Results, Run
from repro.report.compare import matching, where
from repro.report.style import (
    FIDELITIES,
    MARKERS,
    PART_NAMES,
    PARTS,
    THEORY,
    grid,
    part_look,
    ticks,
)

_STYLES = {"gloo": "--", "shm": "-", "auto": ":"}


def figures(results: Results, rows: list[Run]) -> Iterator[tuple[str, Figure | None, str]]:
    caption = (
        "Overhead over the optimum step against message size, with shared memory (shm) and gloo. "
        "Right: the parts of the step it is in."
    )
    yield "overhead", figure(results, rows), caption


def figure(results: Results, rows: list[Run]) -> Figure | None:
    """Overhead against message size, a line for each transport; its parts, a bar for each run."""
    runs = matching(rows, experiment=NAME, group=MESSAGE_SIZE, status="done")
    if not runs:
        return None
    drawn, ((left, right),) = grid(1, 2, 3.6)

    def line_of(run: Run) -> str:
        return f"{run.spec.transport}, {where(results, run)}"

    runs.sort(key=lambda run: (line_of(run), message_bytes(run)))
    for label, some in groupby(runs, key=line_of):
        _line(left, list(some), label)
    sizes = sorted({message_bytes(run) for run in runs})
    left.set_xscale("log", base=2)
    ticks(left, sizes, [_size(size) for size in sizes])
    left.set_ylim(bottom=min(0, left.get_ylim()[0]))
    left.set(
        xlabel="message", ylabel="overhead (%), emulated", title="step over the optimum, minus 1"
    )
    left.legend(loc="upper left")
    runs.sort(key=lambda run: (where(results, run), message_bytes(run), run.spec.transport))
    _parts(right, runs)
    drawn.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=len(PARTS))
    return drawn


def _line(axes: Axes, runs: list[Run], label: str) -> None:
    """One transport's overhead with intervals; without one where there are few rounds."""
    spreads = [overhead(run) for run in runs]
    down = [0.0 if isnan(low) else middle - low for middle, low, _ in spreads]
    up = [0.0 if isnan(high) else high - middle for middle, _, high in spreads]
    axes.errorbar(
        [message_bytes(run) for run in runs],
        [middle for middle, _, _ in spreads],
        [down, up],
        marker=MARKERS["emulated"],
        color=FIDELITIES["emulated"],
        linestyle=_STYLES[runs[0].spec.transport],
        markerfacecolor="white" if runs[0].spec.transport == "gloo" else None,
        label=label,
    )


def _parts(axes: Axes, runs: list[Run]) -> None:
    """A bar of the parts of each run's overhead; what is below 0 stands to the left."""
    right, left = [0.0] * len(runs), [0.0] * len(runs)
    excesses = [_excess_by_part(run) for run in runs]
    for part in PARTS:
        values = [excess[part] for excess in excesses]
        starts = [right[n] if value >= 0 else left[n] for n, value in enumerate(values)]
        label = PART_NAMES.get(part, part)
        axes.barh(
            range(len(runs)), values, left=starts, label=label, height=0.72, **part_look(part)
        )
        right = [end + max(value, 0) for end, value in zip(right, values, strict=True)]
        left = [end + min(value, 0) for end, value in zip(left, values, strict=True)]
    names = [f"{_size(message_bytes(run))}, {run.spec.transport}" for run in runs]
    axes.set_yticks(range(len(runs)), names)
    axes.set_ylim(len(runs) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.axvline(0, color=THEORY, linewidth=0.8)
    axes.grid(axis="y", visible=False)
    axes.set(xlabel="overhead (%), emulated, mean over rounds", title="where it goes")


def _excess_by_part(run: Run) -> dict[str, float]:
    """Each part's excess over arithmetic in percent of the optimum step."""
    best, shares = optimal_step(run), optimal_shares(run)
    return {
        part: statistics.fmean(
            100 * (round_.breakdown[part] * round_.step_s / best - shares[part])
            for round_ in run.rounds
        )
        for part in PARTS
    }


def message_bytes(run: Run) -> int:
    """Bytes of one message: a micro-batch of float32 numbers."""
    return 4 * run.spec.model_args["elements"] * run.spec.N // run.spec.M


def _size(count: int) -> str:
    return f"{count / MIB:g} MiB" if count >= MIB else f"{count / KIB:g} KiB"
