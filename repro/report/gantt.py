"""Timelines as pictures, like the paper's Figure 2(b) and 2(c), and as an animation.

Stage 0 is the lowest row, as in the paper; a box is labelled kind, stage, micro-batch (F_{j,i}; F_j
at M=1).
"""

import io
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.text import Text
from PIL import Image

from repro.gpipe.schedule.timeline import WORK, Span, Timeline
from repro.report.style import KIND_WORDS, KINDS, styled

_HEIGHT = 0.78  # of a row


def draw(timeline: Timeline, title: str, fidelity: str, beneath: Timeline | None = None) -> Figure:
    """A timeline in ms, and beneath it the ideal one of the same schedule in units of one forward.

    Args:
        timeline: that is drawn.
        title: whose first line heads the figure, a second one the timeline.
        fidelity: of the timeline.
        beneath: the ideal timeline, if it is drawn too.
    """
    panels = 1 if beneath is None else 2
    height = 0.75 + panels * (0.95 + 0.42 * timeline.stages)
    figure, axes = plt.subplots(panels, 1, figsize=(9, height), squeeze=False)
    headline, _, details = title.partition("\n")
    figure.suptitle(headline, x=0.01, ha="left", fontsize=11)
    boxes(axes[0][0], timeline, 1e3)
    idle = f"{fidelity}: {timeline.bubble_over_total:.1%} of K x step idle (idle/total)"
    axes[0][0].set(xlabel="time (ms)", title="\n".join(filter(None, (details, idle))))
    if beneath is not None:
        boxes(axes[1][0], beneath, 1.0)
        ideal = (
            f"simulated, ideal (unit costs, F:R:B = 1:1:2): {beneath.bubble_over_total:.1%} idle "
            "(idle/total)"
        )
        axes[1][0].xaxis.get_major_locator().set_params(integer=True)
        axes[1][0].set(xlabel="time (one forward of one micro-batch on one stage = 1)", title=ideal)
    legend(figure, timeline)
    return figure


def picture(timeline: Timeline, title: str, fidelity: str) -> Image.Image:
    """A timeline as an image in memory, for W&B."""
    with styled(), io.BytesIO() as buffer:
        draw(timeline, title, fidelity).savefig(buffer, format="png", dpi=80)
        return Image.open(buffer).copy()


def boxes(
    axes: Axes, timeline: Timeline, scale: float, length: float | None = None
) -> list[tuple[Span, Rectangle, Text | None]]:
    """Draw the spans, times multiplied by `scale`; return (span, box, label) by start.

    The axis shows `length` seconds: those of the step, or more where a longer step stands above.
    """
    length = length or timeline.step_time
    whole = timeline.step_time * scale
    axes.set(ylim=(-0.5, timeline.stages - 0.5), yticks=range(timeline.stages))
    axes.set_xlim(0, length * scale)
    axes.set_yticklabels([f"stage {j}" for j in range(timeline.stages)])
    axes.grid(False)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    # A band for each stage; what stays visible of it is idle.
    for j in range(timeline.stages):
        corner = (0, j - _HEIGHT / 2)
        axes.add_patch(Rectangle(corner, whole, _HEIGHT, facecolor="#F1F1F1", edgecolor="none"))
    labels = _labels(axes, timeline, length)
    drawn = []
    for span in sorted(timeline.spans, key=lambda s: (s.start, s.stage)):
        left, width = (span.start - timeline.start) * scale, span.seconds * scale
        box = Rectangle((left, span.stage - _HEIGHT / 2), width, _HEIGHT)
        box.set(
            facecolor=KINDS.get(span.kind, "#BBBBBB"),
            edgecolor="white",
            linewidth=min(0.8, 60 * width / whole),
        )
        axes.add_patch(box)
        form, size = labels[span.kind]
        text = form.format(span.kind, span.stage, span.micro_batch)
        label = None
        if text:
            label = axes.text(left + width / 2, span.stage, text, ha="center", fontsize=size)
            label.set(va="center_baseline", color="white" if span.kind in "BIU" else "#111111")
        drawn.append((span, box, label))
    return drawn


def _labels(axes: Axes, timeline: Timeline, length: float) -> dict[str, tuple[str, float]]:
    """For each kind the longest label that fits its shorter boxes, as a format and a font size.

    It is F_{j,i} as in Figure 2, else i, else none. The axis shows `length` seconds.
    """
    page = axes.figure.get_figure(root=True)
    width = page.get_figwidth() if page else 9
    points_per_second = 72 * 0.86 * width / (length or 1)
    last = max((span.micro_batch for span in timeline.spans), default=0)
    # Format, font size, and the width in points that it needs.
    without_index = [("${}_{{{}}}$", 9.5, 16)]
    with_index = [("${}_{{{},{}}}$", 9.5, 22), ("{2}", 8, 7 * len(str(last)))]
    chosen = {}
    for kind in {span.kind for span in timeline.spans}:
        lengths = sorted(span.seconds for span in timeline.spans if span.kind == kind)
        room = lengths[len(lengths) // 4] * points_per_second
        labels = without_index if last == 0 or kind == "U" else with_index
        fitting = [(form, size) for form, size, needed in labels if needed < room]
        chosen[kind] = fitting[0] if fitting and kind in WORK else ("", 8)
    return chosen


def legend(figure: Figure, timeline: Timeline) -> None:
    """One legend under the figure: the kinds of the timeline's spans, and idle."""
    present = {span.kind for span in timeline.spans}
    kinds = [kind for kind in KINDS if kind in present]
    handles = [Patch(facecolor=KINDS[kind], label=KIND_WORDS[kind]) for kind in kinds]
    handles.append(Patch(facecolor="#F1F1F1", edgecolor="#BBBBBB", label="idle"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))


def gantt_gif(
    timeline: Timeline, path: Path, title: str = "", frames: int = 60, limit: int = 400_000
) -> Path:
    """An animated gif of one step: boxes appear as time sweeps over them, then the picture rests.

    Args:
        timeline: of the step.
        path: of the gif.
        title: of the picture, and the file's comment.
        frames: of the sweep.
        limit: bytes of the file; frames are left out until it is no larger.
    """
    with styled():
        images = _sweep(timeline, title, frames)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The frame in the middle has every colour, the moving line's too.
    palette = images[len(images) // 2].quantize(64)
    for every in (1, 2, 3, 4, 6):
        kept = [*images[:-1:every], images[-1]]
        first, *others = [
            image.quantize(palette=palette, dither=Image.Dither.NONE) for image in kept
        ]
        milliseconds = [80 * every] * len(others) + [2500]
        first.save(
            path,
            save_all=True,
            append_images=others,
            duration=milliseconds,
            loop=0,
            optimize=False,
            comment=title.encode(),
        )
        if path.stat().st_size <= limit:
            break
    return path


def _sweep(timeline: Timeline, title: str, frames: int) -> list[Image.Image]:
    """RGB images of the timeline at `frames` moments from start to end."""
    figure, axes = plt.subplots(figsize=(9, 1.5 + 0.5 * timeline.stages), dpi=95)
    axes.set_title(title)
    axes.set_xlabel("time (ms)")
    drawn = boxes(axes, timeline, 1e3)
    legend(figure, timeline)
    now = axes.axvline(0, color="#D55E00", linewidth=1.5)
    images = []
    for frame in range(frames + 1):
        time = timeline.start + timeline.step_time * frame / frames
        _until(drawn, time)
        now.set_xdata([1e3 * (time - timeline.start)] * 2)
        now.set_visible(frame < frames)
        figure.canvas.draw()
        width, height = figure.canvas.get_width_height()
        data = figure.canvas.buffer_rgba()  # type: ignore[attr-defined]  # agg's canvas has it
        images.append(Image.frombuffer("RGBA", (width, height), bytes(data)).convert("RGB"))
    return images


def _until(drawn: Sequence[tuple[Span, Rectangle, Text | None]], time: float) -> None:
    """Show of every box the part before `time`, and its label once it is complete."""
    for span, box, label in drawn:
        done = float(time >= span.start)
        if span.seconds:
            done = min(1.0, max(0.0, (time - span.start) / span.seconds))
        box.set_width(1e3 * span.seconds * done)
        box.set_visible(done > 0)
        if label is not None:
            label.set_visible(done >= 1)
