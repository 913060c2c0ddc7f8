"""Figures of Table 1: memory of each stage by kind, and activations against M.

A marker tells the fidelity; lines without markers are a law.
"""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from experiments.table1.fits import UNITS, counted_sizes, favoured
from experiments.table1.runs import MEMORY, M
from repro.harness.frame import Frame, select
from repro.harness.results import Results
from repro.harness.schema import Stage
from repro.report import style

_KIND_NAMES = {
    "boundary": "boundary inputs kept",
    "activations": "inside the micro-batch being differentiated",
    "messages": "messages and buffers",
}
_HIGHEST = 2  # times the memory: higher bars are cut off, with their number


def kinds(results: Results) -> Figure | None:
    sizes = favoured(counted_sizes(results))
    models = [*sizes["model"].unique()]
    if not models:
        return None
    figure, axes = style.grid(len(models), 1, 3.4)
    for (panel,), model in zip(axes, models, strict=True):
        _stacked(panel, model, select(sizes, model=model))
    handles = [
        Patch(color=colour, label=_KIND_NAMES.get(kind, kind))
        for kind, colour in style.MEMORY.items()
    ]
    handles.pop()  # buffers look as messages do
    figure.legend(handles=handles, loc="outside lower center", ncols=4)
    return figure


def _stacked(axes: Axes, model: str, sizes: Frame) -> None:
    name, factor = UNITS[model]
    memory = MEMORY[model] / factor
    x = 0.0
    bars: list[tuple[float, str, Stage]] = []
    for column, size, cut in zip(sizes["column"], sizes["quoted"], sizes["cut"], strict=True):
        last = len(cut.stages) - 1
        # All stages of few; of many the first, middle and last.
        shown = range(last + 1) if last < 8 else (0, (last + 1) // 2, last)
        axes.annotate(
            f"{column}\n{size}",
            (x + (len(shown) - 1) / 2, 0),
            (0, -16),
            textcoords="offset points",
            xycoords=("data", "axes fraction"),
            ha="center",
            va="top",
            fontsize=8,
        )
        bars += [(x + i, str(j) if last else "", cut.stages[j]) for i, j in enumerate(shown)]
        x += len(shown) + 0.8
    places, labels, stages = zip(*bars, strict=True)
    filled = [0.0] * len(stages)
    for kind, colour in style.MEMORY.items():
        edge = style.SOFT if colour == style.IDLE else "none"
        heights = [stage.bytes_of(kind) / factor for stage in stages]
        axes.bar(places, heights, 0.85, filled, color=colour, edgecolor=edge, linewidth=0.3)
        filled = [below + height for below, height in zip(filled, heights, strict=True)]
    top = _HIGHEST * memory
    for place, height in zip(places, filled, strict=True):
        if height > top:
            text = f"{height:.0f}\n{name}"
            axes.text(place, 0.98 * top, text, fontsize=8, ha="center", va="top")
    style.ticks(axes, places, labels)
    axes.set_ylim(0, top)
    axes.axhline(memory, color=style.THEORY, linewidth=1, linestyle="--")
    axes.text(x - 0.6, memory, f"{memory:g} {name}", fontsize=8, ha="right", va="bottom")
    title = (
        f"{style.model_name(model)}, the paper's sizes; N={sizes['N'].max()}, M={M}; stages below"
    )
    axes.set(title=title, ylabel=f"{name} at the stage's peak, counted")
    axes.grid(axis="x", visible=False)
