"""Bars: peak memory of each stage, and where a step's time goes beside the paper's pie."""

from typing import TYPE_CHECKING

from repro.gpipe.schedule.breakdown import breakdown as split
from repro.gpipe.schedule.kinds import SCHEDULES, make_schedule
from repro.harness.results import Results, Run
from repro.paper import breakdown as paper_breakdown
from repro.report.compare import beside_paper, fidelities, matching, settings
from repro.report.style import PART_NAMES, PARTS, grid, k_colour, ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_LOWEST = 1.6  # inches of all panels of bars together


def memory(results: Results, rows: list[Run]) -> "Figure | None":
    """Peak memory of each stage: one group of bars a (K, M), one panel a setting and fidelity."""
    found = [
        (setting, some)
        for setting in settings(results, [row for row in rows if row.peak_gib_per_stage])
        for fidelity in fidelities(setting.rows)
        if (some := matching(setting.rows, fidelity=fidelity))
    ]
    if not found:
        return None
    figure, axes = grid(len(found), 1, 3.0)
    for (panel,), (setting, some) in zip(axes, found, strict=True):
        _memory_panel(panel, sorted(some, key=lambda row: (row.K, row.M)))
        panel.set_title(setting.wide)
    return figure


def _memory_panel(axes: "Axes", points: list[Run]) -> None:
    highest = max(max(point.peak_gib_per_stage) for point in points)
    unit, scale = ("GiB", 1.0) if highest >= 1 else ("MiB", 1024.0)
    for at, point in enumerate(points):
        peaks = [scale * peak for peak in point.peak_gib_per_stage]
        width = min(0.3, 0.8 / len(peaks))
        places = [at + (j - (len(peaks) - 1) / 2) * width for j in range(len(peaks))]
        bars = axes.bar(places, peaks, width * 0.92, color=k_colour(point.K))
        axes.bar_label(bars, _stage_names(len(peaks)), fontsize=7.5, padding=1)
    ticks(axes, list(range(len(points))), [f"K={point.K}\nM={point.M}" for point in points])
    axes.margins(y=0.09)
    axes.set_ylabel(f"peak ({unit}), {points[0].fidelity}")
    axes.grid(axis="x", visible=False)


def _stage_names(K: int) -> list[str]:
    """A name for every bar, or for the first and the last where there are many."""
    return [
        f"stage {j}" if K <= 2 else f"s{j}" if K <= 4 or j in (0, K - 1) else "" for j in range(K)
    ]


def breakdown(results: Results, rows: list[Run]) -> "Figure | None":
    """Parts of K x step time of each run's traced step, a panel a setting; for Table 2 under the paper's pie."""
    panels = []
    if has_pie(results, rows):
        paper = {share.part: share.percent for share in paper_breakdown()}
        panels = [
            ("NeurIPS 2019, Table 4: share of the step", [("quoted: K=2, M not printed", paper)])
        ]
    first = len(panels)
    for setting in settings(results, [row for row in rows if row.K > 1]):
        bars = []
        for row in sorted(setting.rows, key=lambda row: (row.K, row.M)):
            shares = _shares(results, row)
            if shares is not None:
                parts = {part: 100 * share for part, share in drawable(shares).items()}
                bars.append((f"K={row.K}, M={row.M}, {row.fidelity}", parts))
        panels += [(setting.wide, bars)] * bool(bars)
    if len(panels) == first:
        return None
    heights = [0.5 + 0.27 * len(bars) + 0.2 * title.count("\n") for title, bars in panels]
    # The legend and the axis label need their room beneath few bars too.
    heights[0] = max(heights[0], _LOWEST - sum(heights[1:]))
    figure, axes = grid(len(panels), 1, heights)
    for (panel,), (title, bars) in zip(axes, panels, strict=True):
        stack(panel, bars)
        panel.set_title(title)
    axes[-1][0].set_xlabel("share of K x step time (%)")
    figure.legend(
        *axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=len(PARTS)
    )
    return figure


def has_pie(results: Results, rows: list[Run]) -> bool:
    """Whether the paper's pie (NeurIPS Table 4) belongs above these rows: they are of Table 2."""
    return any(row.experiment == "table2" for row in rows) and beside_paper(results, "table2")


def shortened(results: Results, rows: list[Run]) -> bool:
    """Whether some bar's unequal cut shortens the wait: `imbalance` below 0 by what rounds to a percent or more."""
    found = (_shares(results, row) for row in rows if row.K > 1)
    return any(shares["imbalance"] <= -0.005 for shares in found if shares is not None)


def _shares(results: Results, row: Run) -> dict[str, float] | None:
    """Parts of one run's traced step, its waiting replayed by the run's own schedule."""
    timeline = results.timeline(row)
    if timeline is None:
        return None
    schedule = None
    if row.schedule in SCHEDULES:
        schedule = make_schedule(row.schedule, row.K, row.M, row.remat)
    return split(timeline, schedule)


def drawable(parts: dict[str, float]) -> dict[str, float]:
    """The same shares with none below 0: where an unequal cut shortens the wait, that is less bubble."""
    kept = {part: max(0.0, share) for part, share in parts.items()}
    kept["bubble"] += 1 - sum(kept.values())
    return kept


def stack(axes: "Axes", bars: list[tuple[str, dict[str, float]]]) -> None:
    """One horizontal bar of parts in percent for each (name, parts), the first on top."""
    left = [0.0] * len(bars)
    for part, colour in PARTS.items():
        shares = [parts.get(part, 0.0) for _, parts in bars]
        drawn = axes.barh(
            range(len(bars)),
            shares,
            left=left,
            color=colour,
            label=PART_NAMES.get(part, part),
            height=0.72,
        )
        words = [f"{share:.0f}" if share >= 4 else "" for share in shares]
        axes.bar_label(drawn, words, label_type="center", fontsize=8)
        left = [before + share for before, share in zip(left, shares, strict=True)]
    axes.set_yticks(range(len(bars)), [name for name, _ in bars])
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, 100)
    axes.grid(visible=False)
