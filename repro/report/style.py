"""How figures look and how they are saved: a style file, fixed colours, stable bytes."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import log2
from pathlib import Path
from typing import Literal

import matplotlib.pyplot as plt
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

# Okabe and Ito's colours: distinguishable with every common kind of colour blindness.
KINDS = {
    "F": "#56B4E9",
    "R": "#F0C04A",
    "B": "#009E73",
    "I": "#0072B2",
    "W": "#CC79A7",
    "U": "#6E6E6E",
    "setup": "#CFCFCF",
}
IDLE = "#E9E9E9"  # a stage that waits, for whatever reason
KIND_WORDS = {
    "F": "F forward",
    "R": "R recompute",
    "B": "B backward",
    "I": "I gradient of inputs",
    "W": "W gradient of weights",
    "U": "U update",
    "setup": "set-up",
}
PARTS = {
    "computation": "#009E73",
    "recompute": "#F0C04A",
    "update": "#6E6E6E",
    "setup": "#CFCFCF",
    "bubble": "#D55E00",
    "imbalance": "#CC79A7",
    "transfer": "#0072B2",
}
PART_NAMES = {"setup": "set-up"}  # in legends; the others are called what they are
MODELS = {"amoebanet-d": "AmoebaNet-D", "amoebanet-b": "AmoebaNet-B", "transformer": "Transformer"}
MARKERS = {"quoted": "D", "measured": "o", "emulated": "s", "simulated": "^", "counted": "v"}

_K = {
    1: "#6E6E6E",
    2: "#0072B2",
    3: "#56B4E9",
    4: "#D55E00",
    6: "#CC79A7",
    8: "#009E73",
    16: "#8B5E00",
}
# Where a colour tells the fidelity, and not K or M, it is this; each has its marker everywhere.
FIDELITIES = {
    "quoted": "#CC79A7",
    "measured": "#222222",
    "emulated": "#0072B2",
    "simulated": "#56B4E9",
    "counted": "#009E73",
}
QUOTED = FIDELITIES["quoted"]
THEORY = "#222222"  # the ideal, nobody's run: lines, and bars that are not filled
# none of them a fidelity's
_MODEL = {"amoebanet-d": "#D55E00", "amoebanet-b": "#8B5E00", "transformer": "#009E73"}
FORMATS = ("png", "svg")


def above_bar(axes: Axes, x: float, top: float, text: str, size: float) -> None:
    """Write a number above a bar, or above the end of its error bar."""
    axes.annotate(
        text,
        (x, top),
        (0, 1.5),
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontsize=size,
    )


def k_colour(K: int) -> str:
    """The colour of K stages in every figure."""
    return _K.get(K, "#222222")


def model_colour(model: str) -> str:
    """The colour of a model where one figure has several."""
    return _MODEL.get(model, "#6E6E6E")


def m_colour(M: int) -> str:
    """The colour of M micro-batches in every figure, dark for few and light for many."""
    return to_hex(colormaps["plasma"](min(0.8, 0.04 + log2(M) / 7)))


def model_name(model: str) -> str:
    """The paper's spelling of a model's name, or the name itself."""
    return MODELS.get(model, model)


def grid(rows: int, columns: int, height: float | list[float]) -> tuple[Figure, list[list[Axes]]]:
    """A figure of README width and its panels; `height` in inches of every row, or of each."""
    heights = height if isinstance(height, list) else [height] * rows
    size = (9, sum(heights) + 0.4)
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, height_ratios=heights)
    return figure, [list(line) for line in axes]


def in_pairs(count: int, height: float) -> tuple[Figure, list[Axes]]:
    """A figure of README width and as many panels, two in a row of that height in inches."""
    figure, axes = grid((count + 1) // 2, 2, height)
    panels = [panel for line in axes for panel in line]
    for panel in panels[count:]:
        panel.remove()
    return figure, panels[:count]


def ticks(axes: Axes, at: Sequence[float], labels: Sequence[str] | None = None) -> None:
    """Ticks on x at these values and no others, as plain numbers."""
    axes.set_xticks(at, [f"{value:g}" for value in at] if labels is None else labels)
    axes.minorticks_off()


def legend(
    figure: Figure,
    fidelities: Iterable[str],
    *theory: tuple[str, Literal["-", "--", ":"]],
    coloured: bool = False,
) -> None:
    """One legend under the figure: a marker for each fidelity, a line style for each theory.

    Markers are grey where a colour tells K or M, and `coloured` where it tells the fidelity.
    """
    grey = "#444444"
    handles = []
    for name in [fidelity for fidelity in MARKERS if fidelity in set(fidelities)]:
        colour = FIDELITIES[name] if coloured or name == "quoted" else grey
        handles.append(Line2D([], [], linestyle="", marker=MARKERS[name], label=name, color=colour))
    handles += [
        Line2D([], [], linewidth=1.1, linestyle=style, label=words, color=grey)
        for words, style in theory
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))


@contextmanager
def styled() -> Iterator[None]:
    """Matplotlib with our style and no display; figures made inside are closed at the end."""
    plt.switch_backend("agg")
    with plt.rc_context():
        plt.rcdefaults()
        plt.style.use(Path(__file__).with_name("gpipe.mplstyle"))
        try:
            yield
        finally:
            plt.close("all")


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write `stem`.png and `stem`.svg without date and version, so that bytes are stable."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = [stem.parent / f"{stem.name}.{kind}" for kind in FORMATS]
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # laid out once, for all formats
    # Not by savefig, which draws a figure twice for each format.
    figure.set_dpi(plt.rcParams["savefig.dpi"])
    FigureCanvasAgg(figure).print_png(paths[0], metadata={"Software": None})
    FigureCanvasSVG(figure).print_svg(paths[1], metadata={"Date": None, "Creator": None})
    plt.close(figure)
    return paths
