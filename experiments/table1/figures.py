"""Figures of Table 1: memory of each stage by kind, and activations against M.

A marker tells the fidelity; lines without markers are a law.
"""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from experiments.table1.fits import MODELS, Fit, printed_fit, recorded_fits, unit
from experiments.table1.laws import activation_points, axis, constants, law_bytes
from experiments.table1.runs import MEMORY, M
from repro.harness.results import Results, Run
from repro.harness.schema import CutModel, Stage
from repro.paper import table1
from repro.paper.theory import MEMORY_LAWS
from repro.report.style import (
    IDLE,
    KINDS,
    MARKERS,
    SOFT,
    THEORY,
    grid,
    model_name,
    ticks,
)
from repro.report.style import MEMORY as COLOURS

_KIND_NAMES = {
    "boundary": "boundary inputs kept",
    "activations": "inside the micro-batch being differentiated",
    "messages": "messages and buffers",
    "buffers": "",  # both are hardly to be seen
}
_RULES = {"always": ("recomputed", KINDS["R"]), "never": ("all kept", KINDS["F"])}
_HIGHEST = 2  # times the memory: higher bars are cut off, with their number
_LINES = ("--", ":", "-.")


def kinds(results: Results, _rows: list[Run]) -> Figure | None:
    """What fills each stage at its peak: the paper's sizes, stacked by kind."""
    fits = {model: _one_fit_a_column(results, model) for model in MODELS}
    models = [model for model in MODELS if fits[model]]
    if not models:
        return None
    figure, axes = grid(len(models), 1, 3.4)
    for (panel,), model in zip(axes, models, strict=True):
        _stacked(panel, model, fits[model])
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def _one_fit_a_column(results: Results, model: str) -> list[Fit]:
    fits = recorded_fits(results, fidelity="counted")
    sizes = [printed_fit(fits, size) for size in table1() if size.model == model]
    return [fit for fit in sizes if fit is not None]


def _shown_stages(cut: CutModel) -> list[tuple[str, Stage]]:
    """All stages of few; of many the first, middle and last."""
    stages = cut.stages
    shown = range(len(stages)) if len(stages) <= 8 else (0, len(stages) // 2, len(stages) - 1)
    return [(str(j), stages[j]) for j in shown]


def _stacked(axes: Axes, model: str, fits: list[Fit]) -> None:
    name, factor = unit(model)
    memory = MEMORY[model] / factor
    x = 0.0
    labels: list[str] = []
    places: list[float] = []
    for fit in fits:
        stages = _shown_stages(fit.cut)
        axes.annotate(
            f"{fit.column}\n{fit.size(fit.cut)}",
            (x + (len(stages) - 1) / 2, 0),
            (0, -16),
            textcoords="offset points",
            xycoords=("data", "axes fraction"),
            ha="center",
            va="top",
            fontsize=8,
        )
        for label, stage in stages:
            _stack(axes, x, stage, fit, named=not places)
            places.append(x)
            labels.append(label if len(stages) > 1 else "")
            x += 1
        x += 0.8
    ticks(axes, places, labels)
    axes.set_ylim(0, _HIGHEST * memory)
    axes.axhline(memory, color=THEORY, linewidth=1, linestyle="--")
    axes.text(x - 0.6, memory, f"{memory:g} {name}", fontsize=8, ha="right", va="bottom")
    title = f"{model_name(model)}, the paper's sizes; N={fits[0].spec.N}, M={M}; stages below"
    axes.set(title=title, ylabel=f"{name} at the stage's peak, counted")
    axes.grid(axis="x", visible=False)


def _stack(axes: Axes, x: float, stage: Stage, fit: Fit, *, named: bool) -> None:
    """One bar; `named` if its kinds make the legend."""
    name, factor = unit(fit.model)
    bottom = 0.0
    for kind, colour in COLOURS.items():
        height = stage.bytes_of(kind) / factor
        if not height and not named:
            continue
        label = _KIND_NAMES.get(kind, kind) if named else f"_{fit.column}, {kind}"
        edge = SOFT if colour == IDLE else "none"
        axes.bar(x, height, 0.85, bottom, color=colour, edgecolor=edge, linewidth=0.3, label=label)
        bottom += height
    top = _HIGHEST * MEMORY[fit.model] / factor
    if bottom > top:
        text = f"{bottom:.0f}\n{name}"
        axes.text(x, 0.98 * top, text, fontsize=8, ha="center", va="top")


def laws(results: Results, _rows: list[Run]) -> Figure | None:
    """Peak activations of the fullest stage against M, counted and by the laws."""
    models = [
        model for model in MODELS if len(axis(activation_points(results, model, "always"), "M")) > 2
    ]
    if not models:
        return None
    figure, axes = grid(1, len(models), 3.6)
    for panel, model in zip(axes[0], models, strict=True):
        _law_panel(panel, results, model)
    return figure


def _law_panel(axes: Axes, results: Results, model: str) -> None:
    name, factor = unit(model)
    for checkpoint, (word, colour) in _RULES.items():
        points = axis(activation_points(results, model, checkpoint), "M")
        points = sorted(points, key=lambda point: point.M)
        K, N = points[0].K, points[0].N
        axes.plot(
            [point.M for point in points],
            [point.size / factor for point in points],
            MARKERS["counted"],
            color=colour,
            label=f"counted, {word}",
        )
        eighths = 8 * (points[-1].M.bit_length() - 1)  # of a doubling of M
        dense = [2 ** (step / 8) for step in range(eighths + 1)]
        own_laws = [law for law in MEMORY_LAWS if law.recomputes == (checkpoint == "always")]
        for style, law in zip(_LINES, own_laws, strict=False):
            fitted = constants(law, points)
            sizes = [law_bytes(law, fitted, K, m, N) / factor for m in dense]
            axes.plot(dense, sizes, style, color=colour, linewidth=1.1, label=law.name)
    axes.set(xscale="log", xlabel="M micro-batches", ylabel=f"peak activations of a stage ({name})")
    _plain_log(axes)
    axes.set_title(f"{model_name(model)}, K={K}, N={N}")
    ticks(axes, [point.M for point in points])
    axes.legend(fontsize=7.5)


def _plain_log(axes: Axes) -> None:
    """A logarithmic y axis with plain numbers, between powers of ten too where few are in sight."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")


FIGURES = {
    "kinds": (
        kinds,
        "What fills each stage when it is fullest: the paper's sizes, counted, a bar for each "
        "stage. The dashed line is the memory of one accelerator.",
    ),
    "laws": (
        laws,
        "Peak activations of the fullest stage against M, counted. Lines are the laws with the "
        "constants that fit best.",
    ),
}
