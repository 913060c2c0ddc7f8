"""Timelines as pictures, like the paper's Figure 2(b) and 2(c).

Stage 0 is the lowest row, as in the paper, whose F_{j,i} is "F j,i" here: kind, stage, micro-batch.
Each rank holds one stage.
"""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path as Outline

from repro.gpipe.schedule.timeline import Timeline
from repro.harness.text import percent, seconds
from repro.report.style import IDLE, KIND_WORDS, KINDS, SOFT, grid

_HEIGHT = 0.78  # of a row


def draw(steps: list[tuple[str, Timeline]], fidelity: str) -> Figure:
    """Steps on as many ranks, under each other on one clock in ms, with labelled boxes."""
    figure, axes = grid(len(steps), 1, 0.55 + 0.36 * steps[0][1].ranks)
    longest = max(step.step_time for _, step in steps)
    for (panel,), (title, step) in zip(axes, steps, strict=True):
        _boxes(panel, step, longest)
        _write(panel, step, longest)
        idle = f"{seconds(step.step_time)}, {percent(step.idle_over_total)} idle"
        panel.set_title(f"{title}: {idle}")
    axes[-1][0].set_xlabel(f"time (ms), {fidelity}")
    _legend(figure, [step for _, step in steps])
    return figure


def _boxes(axes: Axes, timeline: Timeline, length: float) -> None:
    """Draw the spans on a row for each rank, in ms; the axis is `length` seconds long."""
    ranks = range(timeline.ranks)
    axes.set(xlim=(0, 1e3 * length), ylim=(-0.5, timeline.ranks - 0.5))
    axes.set_yticks(ranks, [timeline.row_name(rank) for rank in ranks])
    axes.grid(False)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    # A band for each rank; what stays visible of it is idle.
    _fill(axes, [_corners(0, 1e3 * timeline.step_time, rank) for rank in ranks], IDLE, 0)
    for kind in sorted({span.kind for span in timeline.spans}):
        spans = [span for span in timeline.spans if span.kind == kind]
        lefts = [1e3 * (span.start - timeline.start) for span in spans]
        corners = [
            _corners(left, 1e3 * span.seconds, span.stage)
            for left, span in zip(lefts, spans, strict=True)
        ]
        # Edges of narrow boxes must not cover them.
        width = min(0.8, 60 * min(span.seconds for span in spans) / timeline.step_time)
        _fill(axes, corners, KINDS[kind], width)


def _corners(left: float, width: float, row: int) -> list[tuple[float, float]]:
    low, high = row - _HEIGHT / 2, row + _HEIGHT / 2
    return [(left, low), (left + width, low), (left + width, high), (left, high), (left, low)]


def _fill(axes: Axes, boxes: list[Any], colour: str, edge: float) -> None:
    """All boxes of one look as one patch, so that an svg file stays small."""
    codes = [Outline.MOVETO, Outline.LINETO, Outline.LINETO, Outline.LINETO, Outline.CLOSEPOLY]
    outline = Outline([corner for box in boxes for corner in box], codes * len(boxes))
    look = {"facecolor": colour, "edgecolor": "white" if edge else "none", "linewidth": edge}
    axes.add_patch(PathPatch(outline, **look))


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


def _legend(figure: Figure, timelines: list[Timeline]) -> None:
    present = {span.kind for timeline in timelines for span in timeline.spans}
    kinds = [kind for kind in KINDS if kind in present]
    handles = [Patch(facecolor=KINDS[kind], label=KIND_WORDS[kind]) for kind in kinds]
    handles.append(Patch(facecolor=IDLE, edgecolor=SOFT, linewidth=0.4, label="idle"))
    figure.legend(handles=handles, loc="lower center", ncols=len(handles))
