"""Timelines as pictures, like the paper's Figure 2(b) and 2(c).

Stage 0 is the lowest row, as in the paper, whose F_{j,i} is "F j,i" here: kind, stage, micro-batch.
Where ranks hold several stages, a row is a rank, and its later stages are paler.
"""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path as Outline

from repro.gpipe.schedule.timeline import Span, Timeline
from repro.harness.text import percent, seconds
from repro.report.style import BELOW, IDLE, KIND_WORDS, KINDS, SOFT, grid

_HEIGHT = 0.78  # of a row
_PALER = 0.55  # opacity of the boxes of a rank's second stage, of the third its square


def draw(steps: list[tuple[str, Timeline]], fidelity: str) -> Figure:
    """Steps on as many ranks, under each other on one clock in ms, with labelled boxes."""
    figure, axes = grid(len(steps), 1, 0.55 + 0.36 * steps[0][1].ranks)
    longest = max(step.step_time for _, step in steps)
    for (panel,), (title, step) in zip(axes, steps, strict=True):
        boxes(panel, step, longest)
        _write(panel, step, longest)
        idle = f"{seconds(step.step_time)}, {percent(step.idle_over_total)} idle"
        panel.set_title(f"{title}: {idle}")
    axes[-1][0].set_xlabel(f"time (ms), {fidelity}")
    legend(figure, [step for _, step in steps])
    return figure


def boxes(axes: Axes, timeline: Timeline, length: float) -> None:
    """Draw the spans on a row for each rank, in ms, up to `length` seconds."""
    names = [timeline.row_name(rank) for rank in range(timeline.ranks)]
    axes.set(xlim=(0, 1e3 * length), ylim=(-0.5, timeline.ranks - 0.5))
    axes.set_yticks(range(timeline.ranks), names)
    axes.grid(False)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    # A band for each rank; what stays visible of it is idle.
    whole = 1e3 * min(length, timeline.step_time)
    _fill(axes, [_corners(0, whole, rank) for rank in range(timeline.ranks)], IDLE, 0)
    spans: dict[tuple[str, int], list[Span]] = {}
    for span in timeline.spans:
        if span.start - timeline.start < length:
            spans.setdefault((span.kind, span.stage // timeline.ranks), []).append(span)
    for (kind, turn), of_kind in sorted(spans.items()):
        corners = []
        for span in of_kind:
            left, rank = 1e3 * (span.start - timeline.start), span.stage % timeline.ranks
            corners.append(_corners(left, 1e3 * span.seconds, rank))
        # Edges of narrow boxes must not cover them.
        width = min(0.8, 60 * min(span.seconds for span in of_kind) / timeline.step_time)
        _fill(axes, corners, KINDS[kind], width, _PALER**turn)


def _corners(left: float, width: float, row: int) -> list[tuple[float, float]]:
    low, high = row - _HEIGHT / 2, row + _HEIGHT / 2
    return [(left, low), (left + width, low), (left + width, high), (left, high), (left, low)]


def _fill(axes: Axes, boxes: list[Any], colour: str, edge: float, opacity: float = 1.0) -> None:
    """All boxes of one look as one patch, so that an svg file stays small."""
    codes = [Outline.MOVETO, Outline.LINETO, Outline.LINETO, Outline.LINETO, Outline.CLOSEPOLY]
    outline = Outline([corner for box in boxes for corner in box], codes * len(boxes))
    look = {"facecolor": colour, "edgecolor": "white" if edge else "none", "linewidth": edge}
    axes.add_patch(PathPatch(outline, alpha=opacity if opacity < 1 else None, **look))


def _write(axes: Axes, timeline: Timeline, length: float) -> None:
    """Label boxes with kind, stage and micro-batch; with kind and stage at M=1."""
    is_whole = all(span.micro_batch < 1 for span in timeline.spans)
    for span in timeline.spans:
        if span.kind in "FRB":
            place = f"{span.stage}" if is_whole else f"{span.stage},{span.micro_batch}"
            is_narrow = span.seconds < 0.05 * length
            text = f"{span.kind}\n{place}" if is_narrow else f"{span.kind} {place}"
            middle = 1e3 * ((span.start + span.end) / 2 - timeline.start)
            look: dict[str, Any] = {"fontsize": 6.5 if is_narrow else 9, "linespacing": 0.9}
            axes.text(middle, span.stage, text, ha="center", va="center", **look)


def legend(figure: Figure, timelines: list[Timeline]) -> None:
    present = {span.kind for timeline in timelines for span in timeline.spans}
    kinds = [kind for kind in KINDS if kind in present]
    handles = [Patch(facecolor=KINDS[kind], label=KIND_WORDS[kind]) for kind in kinds]
    handles.append(Patch(facecolor=IDLE, edgecolor=SOFT, linewidth=0.4, label="idle"))
    figure.legend(handles=handles, loc=BELOW, ncols=len(handles))
