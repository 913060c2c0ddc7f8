"""Bars: peak memory of each stage, and the parts of a step."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from repro.harness.results import Results, Run
from repro.report.compare import fidelities, matching, settings
from repro.report.style import (
    INK,
    PART_NAMES,
    PARTS,
    grid,
    is_dark,
    part_look,
    series_colour,
    ticks,
)


def memory(results: Results, rows: list[Run]) -> Figure | None:
    """Peak memory of each stage: one group of bars a (K, M), one panel a setting and fidelity."""
    panels = [
        (setting.wide, matching(setting.rows, fidelity=fidelity))
        for setting in settings(results, [run for run in rows if run.peak_gib_per_stage])
        for fidelity in fidelities(setting.rows)
    ]
    if not panels:
        return None
    figure, axes = grid(len(panels), 1, 2.3)
    for (panel,), (title, runs) in zip(axes, panels, strict=True):
        _memory_panel(panel, sorted(runs, key=lambda run: (run.K, run.M)))
        panel.set_title(title)
    return figure


def _memory_panel(axes: Axes, runs: list[Run]) -> None:
    highest = max(run.peak_gib_max for run in runs)
    unit, scale = ("GiB", 1.0) if highest >= 1 else ("MiB", 1024.0)
    for at, run in enumerate(runs):
        peaks = [scale * peak for peak in run.peak_gib_per_stage]
        width = min(0.3, 0.8 / len(peaks))
        places = [at + (j - (len(peaks) - 1) / 2) * width for j in range(len(peaks))]
        bars = axes.bar(places, peaks, width * 0.92, color=series_colour(run.K))
        axes.bar_label(bars, _stage_names(len(peaks)), fontsize=7.5, padding=1)
    ticks(axes, list(range(len(runs))), [f"K={run.K}\nM={run.M}" for run in runs])
    axes.margins(y=0.09)
    axes.set_ylabel(f"peak ({unit}), {runs[0].fidelity}")
    axes.grid(axis="x", visible=False)


def _stage_names(K: int) -> list[str]:
    """A name for every bar; of more than four for the first and the last alone."""
    if K <= 4:
        return [f"s{j}" for j in range(K)]
    return ["s0", *[""] * (K - 2), f"s{K - 1}"]


def drawable(parts: dict[str, float]) -> dict[str, float]:
    """The same shares with none below 0: what an unequal cut shortens is taken off the bubble."""
    positive = {part: max(0.0, share) for part, share in parts.items()}
    positive["bubble"] += sum(min(0.0, share) for share in parts.values())
    return positive


def stack(axes: Axes, bars: list[tuple[str, dict[str, float]]]) -> None:
    """One horizontal bar of parts in percent for each (name, parts), the first on top."""
    left = [0.0] * len(bars)
    for part, colour in PARTS.items():
        shares = [parts.get(part, 0.0) for _, parts in bars]
        label = PART_NAMES.get(part, part)
        places = range(len(bars))
        drawn = axes.barh(places, shares, left=left, label=label, height=0.72, **part_look(part))
        # A narrow part has no room for its number.
        numbers = [f"{share:.0f}" if share >= 4 else "" for share in shares]
        ink = INK[is_dark(colour)]
        texts = axes.bar_label(drawn, numbers, label_type="center", fontsize=8.5, color=ink)
        if part_look(part)["hatch"]:
            for text in texts:
                text.set_bbox({"facecolor": colour, "edgecolor": "none", "pad": 1})
        left = [before + share for before, share in zip(left, shares, strict=True)]
    axes.set_yticks(range(len(bars)), [name for name, _ in bars])
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, 100)
    axes.grid(visible=False)
