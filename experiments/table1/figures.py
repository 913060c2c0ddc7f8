"""Figures of Table 1: memory of each stage by kind, and activations against M.

A marker tells the fidelity; lines without markers are a law.
"""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullLocator

from experiments.table1.fits import UNITS, counted_sizes, favoured
from experiments.table1.laws import axis, by_law, points
from experiments.table1.runs import MEMORY, M
from repro.harness.frame import Frame, select
from repro.harness.results import Results
from repro.harness.schema import Stage
from repro.paper.theory import MEMORY_LAWS
from repro.report import style

_KIND_NAMES = {
    "boundary": "boundary inputs kept",
    "activations": "inside the micro-batch being differentiated",
    "messages": "messages and buffers",
}
_RULES = {"always": ("recomputed", style.KINDS["R"]), "never": ("all kept", style.KINDS["F"])}
_HIGHEST = 2  # times the memory: higher bars are cut off, with their number
_LINES = ("--", ":", "-.")


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


def laws_over_m(results: Results) -> Figure | None:
    models = [model for model in UNITS if len(axis(points(results, model, "always"), "M")) > 2]
    if not models:
        return None
    figure, axes = style.grid(1, len(models), 3.6)
    for panel, model in zip(axes[0], models, strict=True):
        _law_panel(panel, results, model)
    return figure


def _law_panel(axes: Axes, results: Results, model: str) -> None:
    name, factor = UNITS[model]
    for remat, (word, colour) in _RULES.items():
        counted = axis(points(results, model, remat), "M").sort_values("M")
        Ms = [*counted["M"]]
        sizes = counted["bytes"] / factor
        label = f"counted, {word}"
        axes.plot(Ms, sizes, style.MARKERS["counted"], color=colour, label=label)
        eighths = 8 * (Ms[-1].bit_length() - 1)  # of a doubling of M
        dense = [2 ** (step / 8) for step in range(eighths + 1)]
        own_laws = [law for law in MEMORY_LAWS if law.recomputes == (remat == "always")]
        for dashes, law in zip(_LINES, own_laws, strict=False):
            sizes = [size / factor for size in by_law(law, counted, dense)]
            axes.plot(dense, sizes, dashes, color=colour, linewidth=1.1, label=law.name)
        axes.set_title(f"{style.model_name(model)}, K={counted['K'].max()}, N={counted['N'].max()}")
    axes.set(xscale="log", xlabel="M micro-batches", ylabel=f"peak activations of a stage ({name})")
    # Plain numbers, between powers of ten too where few are in sight.
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")
    style.ticks(axes, Ms)
    axes.legend(fontsize=7.5)
