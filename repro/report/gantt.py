"""Timelines as pictures, like the paper's Figure 2(b) and 2(c).

Stage 0 is the lowest row, as in the paper; a box is labelled kind, stage, micro-batch (F_{j,i}; F_j
at M=1). Where ranks hold several stages, a row is a rank, and its later stages are paler.
"""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path as Outline

from repro.gpipe.schedule.timeline import WORK, Span, Timeline
from repro.harness.text import percent, seconds
from repro.report.style import IDLE, KIND_WORDS, KINDS, SOFT, grid, ink

_HEIGHT = 0.78  # of a row
_PALER = 0.55  # opacity of the boxes of a rank's second stage, of the third its square


def draw(headline: str, steps: list[tuple[str, Timeline]], fidelity: str) -> Figure:
    """Steps under each other on one clock, in ms."""
    # Title, axis and legend of one or two ranks need more room than their rows.
    heights = [max(1.6, 0.55 + 0.36 * step.ranks) for _, step in steps]
    figure, axes = grid(len(steps), 1, heights)
    figure.suptitle(headline, x=0.01, ha="left")
    longest = max(step.step_time for _, step in steps)
    for (panel,), (title, step) in zip(axes, steps, strict=True):
        boxes(panel, step, longest)
        idle = f"{seconds(step.step_time)}, {percent(step.idle_over_total)} idle"
        panel.set_title(f"{title}: {idle}" if title else idle)
    axes[-1][0].set_xlabel(f"time (ms), {fidelity}")
    legend(figure, [step for _, step in steps])
    return figure


def boxes(
    axes: Axes, timeline: Timeline, length: float | None = None, *, labelled: bool = True
) -> None:
    """Draw the spans on a row for each rank, in ms.

    The axis shows `length` seconds: those of the step, or more where a longer step stands above.
    """
    length = length or timeline.step_time
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
    if labelled:
        _write(axes, timeline, length)


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
    # With several stages on a rank, the row does not tell the stage, and most boxes are narrow.
    labels = _labels(axes, timeline, length) if timeline.stages_per_rank == 1 else {}
    for span in timeline.spans:
        if span.kind in labels:
            form, size = labels[span.kind]
            text = form.format(span.kind, span.stage, span.micro_batch)
            middle = 1e3 * ((span.start + span.end) / 2 - timeline.start)
            label = axes.text(middle, span.stage, text, ha="center", fontsize=size, linespacing=0.9)
            label.set(va="center", color=ink(KINDS[span.kind]))


def _labels(axes: Axes, timeline: Timeline, length: float) -> dict[str, tuple[str, float]]:
    """For each kind the longest label that fits its shorter boxes, as a format and a font size.

    It is F_{j,i} as in Figure 2, in two lines where boxes are narrow, else i, else none. The axis
    shows `length` seconds.
    """
    page = axes.get_figure(root=True)
    assert page is not None
    points_per_second = 72 * 0.86 * page.get_figwidth() / (length or 1)
    last = max((span.micro_batch for span in timeline.spans), default=0)
    # Format, font size, and the width in points that it needs.
    without_index = [("${}_{{{}}}$", 9.5, 16)]
    digits = len(str(last))
    in_two_lines = ("${}$\n{},{}", 6.5, 6 + 4 * digits)
    with_index = [("${}_{{{},{}}}$", 9.5, 16 + 4 * digits), in_two_lines, ("{2}", 8, 7 * digits)]
    chosen = {}
    for kind in {span.kind for span in timeline.spans} & {*WORK}:
        lengths = sorted(span.seconds for span in timeline.spans if span.kind == kind)
        room = lengths[len(lengths) // 4] * points_per_second
        labels = without_index if last == 0 or kind == "U" else with_index
        fitting = [(form, size) for form, size, needed in labels if needed < room]
        if fitting:
            chosen[kind] = fitting[0]
    return chosen


def legend(figure: Figure, timelines: list[Timeline]) -> None:
    present = {span.kind for timeline in timelines for span in timeline.spans}
    kinds = [kind for kind in KINDS if kind in present]
    handles = [Patch(facecolor=KINDS[kind], label=KIND_WORDS[kind]) for kind in kinds]
    handles.append(Patch(facecolor=IDLE, edgecolor=SOFT, linewidth=0.4, label="idle"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
