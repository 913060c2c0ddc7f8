"""Figures of Table 1: memory of each stage by kind, peak activations against M with the laws, largest model against K.

A marker tells the fidelity; lines without markers are a law or a proportion.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from experiments.table1.fits import MODELS, Found, device_memory, found, unit
from experiments.table1.laws import axis, constants, points, said
from repro.harness.results import Results, Run
from repro.harness.schema import CutModel, Stage
from repro.harness.spec import ENOUGH
from repro.paper import table1
from repro.paper.theory import MEMORY_LAWS
from repro.report.style import MARKERS, QUOTED, grid, legend, m_colour, model_name, ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


KINDS = {
    "parameters": "#0072B2",
    "gradients": "#56B4E9",
    "optimizer": "#CFCFCF",
    "boundary": "#F0C04A",
    "activations": "#D55E00",
    "messages": "#CC79A7",
    "buffers": "#009E73",
}
_WORDS = {
    "boundary": "boundary inputs kept",
    "activations": "inside the micro-batch being differentiated",
}
_HIGHEST = 2  # times the memory: what stands out further is cut off, with its number
_LINES = ("--", ":", "-.")


def kinds(results: Results, _rows: list[Run]) -> "Figure | None":
    """What fills each stage at its peak: the paper's sizes, Naive-1 against every Pipeline, stacked by kind."""
    made = [(model, bars) for model in MODELS if (bars := _bars(results, model))]
    if not made:
        return None
    figure, axes = grid(len(made), 1, 3.4)
    for (panel,), (model, bars) in zip(axes, made, strict=True):
        _stacked(panel, model, bars)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def _bars(results: Results, model: str) -> list[tuple[Found, list[tuple[str, Stage]]]]:
    """For each column of the paper, once, the stages that are shown: all of few, of many the first, middle, last."""
    columns: dict[str, Found] = {}
    for fit in found(results, model=model, fidelity="counted"):
        if fit.given and fit.spec.memory != ENOUGH:
            columns.setdefault(fit.column, fit)
    return [(fit, _stages(fit.one)) for fit in columns.values()]


def _stages(cut: CutModel) -> list[tuple[str, Stage]]:
    stages = cut.stages
    shown = range(len(stages)) if len(stages) <= 8 else (0, len(stages) // 2, len(stages) - 1)
    return [(str(j), stages[j]) for j in shown]


def _stacked(axes: "Axes", model: str, bars: list[tuple[Found, list[tuple[str, Stage]]]]) -> None:
    name, factor = unit(model)
    memory = (bars[0][0].spec.memory or 0) / factor
    at, labels, places = 0.0, list[str](), list[float]()
    for fit, stages in bars:
        middle = at + (len(stages) - 1) / 2
        axes.annotate(
            f"{fit.column}\n{fit.size(fit.one)}",
            (middle, 0),
            (0, -16),
            textcoords="offset points",
            xycoords=("data", "axes fraction"),
            ha="center",
            va="top",
            fontsize=8,
        )
        for label, stage in stages:
            bottom = 0.0
            for kind, colour in KINDS.items():
                height = stage.bytes_of(kind) / factor
                axes.bar(
                    at,
                    height,
                    0.85,
                    bottom,
                    color=colour,
                    label="" if places else _WORDS.get(kind, kind),
                )
                bottom += height
            if bottom > _HIGHEST * memory:
                axes.text(
                    at,
                    0.98 * _HIGHEST * memory,
                    f"{bottom:.0f}\n{name}",
                    fontsize=8,
                    ha="center",
                    va="top",
                    color="w",
                )
            places.append(at)
            labels.append(label if len(stages) > 1 else "")
            at += 1
        at += 0.8
    ticks(axes, places, labels)
    axes.set_ylim(0, _HIGHEST * memory)
    axes.axhline(memory, color="#222222", linewidth=1, linestyle="--")
    axes.text(at - 0.6, memory, f"{memory:g} {name}", fontsize=8, ha="right", va="bottom")
    used = [fit.spec.M for fit, _ in bars if not fit.naive]
    title = (
        f"{model_name(model)}, the paper's sizes; N={bars[0][0].spec.N}, "
        f"M={used[0] if used else 1}; stages below"
    )
    axes.set(title=title, ylabel=f"{name} at the stage's peak, counted")
    axes.grid(axis="x", visible=False)


def laws(results: Results, _rows: list[Run]) -> "Figure | None":
    """Peak activations of the fullest stage against M, with and without re-materialization, over the laws."""
    made = [model for model in MODELS if len(axis(points(results, model, "always"), "M")) > 2]
    if not made:
        return None
    figure, axes = grid(1, len(made), 3.6)
    for panel, model in zip(axes[0], made, strict=True):
        _law_panel(panel, results, model)
    legend(figure, ["counted"])
    return figure


def _law_panel(axes: "Axes", results: Results, model: str) -> None:
    name, factor = unit(model)
    for colour, checkpoint in (("#D55E00", "always"), ("#0072B2", "never")):
        some = sorted(axis(points(results, model, checkpoint), "M"), key=lambda point: point.M)
        sizes = [point.size / factor for point in some]
        word = "recomputed" if checkpoint == "always" else "all kept"
        axes.plot(
            [point.M for point in some],
            sizes,
            MARKERS["counted"],
            color=colour,
            label=f"counted, {word}",
        )
        dense = [2 ** (step / 8) for step in range(8 * (some[-1].M.bit_length() - 1) + 1)]
        laws_here = [law for law in MEMORY_LAWS if law.recomputes == (checkpoint == "always")]
        for line, law in zip(_LINES, laws_here, strict=False):
            fitted = constants(law, some)
            ys = [said(law, fitted, some[0].K, M, some[0].N) / factor for M in dense]
            axes.plot(dense, ys, line, color=colour, linewidth=1.1, label=law.name)
    axes.set(xscale="log", xlabel="M micro-batches", ylabel=f"peak activations of a stage ({name})")
    _plain_log(axes)
    axes.set_title(f"{model_name(model)}, K={some[0].K}, N={some[0].N}")
    ticks(axes, [point.M for point in some])
    axes.legend(fontsize=7.5)


def largest(results: Results, _rows: list[Run]) -> "Figure | None":
    """Parameters of the largest model against K, and over those of one stage, beside the paper's."""
    made = [model for model in MODELS if _curves(results, model)]
    if not made:
        return None
    figure, axes = grid(len(made), 2, 3.2)
    for (left, right), model in zip(axes, made, strict=True):
        curves = _curves(results, model)
        _largest_panel(
            left,
            model,
            {words: c for words, c in curves.items() if "small" not in words},
            lambda _: 1e9,
        )
        _largest_panel(right, model, curves, lambda curve: curve[1])
        left.set(title=model_name(model), ylabel="parameters of the largest model (billion)")
        right.set(title="the same, over Pipeline-1's", ylabel="times Pipeline-1's")
        ends = [
            min(K for curve in curves.values() for K in curve),
            max(K for curve in curves.values() for K in curve),
        ]
        right.plot(ends, ends, ":", color="#444444", linewidth=1.1)
        right.legend(fontsize=7.5)
    present = {"quoted", *(fit.spec.fidelity for fit in found(results) if not fit.given)}
    legend(figure, present, ("in proportion to K", ":"))
    return figure


def _curves(results: Results, model: str) -> dict[str, dict[int, float]]:
    """Name -> K -> parameters; of Pipelines alone."""
    curves: dict[str, dict[int, float]] = {}
    for fit in found(results, model=model):
        other = fit.spec.memory != device_memory(model)
        if fit.given or fit.naive or fit.best is None or (other and fit.spec.fidelity == "counted"):
            continue
        small = "small, " if other else ""
        fused = ", fused" if fit.spec.model_args.get("attention") == "fused" else ""
        words = f"{fit.spec.fidelity}, {small}M={fit.spec.M}{fused}"
        curves.setdefault(words, {})[fit.spec.K] = fit.best.parameters
    if curves:
        cells = [size for size in table1() if size.model == model and size.name != "Naive-1"]
        curves["quoted"] = {size.accelerators: float(size.parameters) for size in cells}
    return {words: curve for words, curve in curves.items() if 1 in curve}


def _largest_panel(
    axes: "Axes",
    model: str,
    curves: dict[str, dict[int, float]],
    over: Callable[[dict[int, float]], float],
) -> None:
    for words, curve in curves.items():
        fidelity = words.partition(",")[0]
        look: dict[str, Any] = {"color": QUOTED}
        if fidelity != "quoted":
            look = {"color": m_colour(int(words.partition("M=")[2].partition(",")[0]))}
            look["markerfacecolor"] = "white" if "fused" in words else look["color"]
        axes.plot(
            list(curve),
            [size / over(curve) for size in curve.values()],
            MARKERS[fidelity],
            linestyle="-",
            linewidth=0.8,
            label=words,
            **look,
        )
    axes.set(xscale="log", xlabel="K accelerators")
    _plain_log(axes)
    ticks(axes, sorted({K for curve in curves.values() for K in curve}))


def _plain_log(axes: "Axes") -> None:
    """A logarithmic y with plain numbers, also between powers of ten where few of these are in sight."""
    from matplotlib.ticker import LogLocator, NullLocator

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")


FIGURES = {
    "kinds": (kinds, "What fills each stage when it is fullest: the paper's sizes, counted."),
    "laws": (
        laws,
        "Peak activations of the fullest stage against M, counted, and the laws with the "
        "constants that fit best.",
    ),
    "largest": (largest, "The largest model that fits, against K; right: over that of one stage."),
}
