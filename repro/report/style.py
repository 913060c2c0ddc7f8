"""How figures look and how they are saved: a style file, fixed colours, stable bytes."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import log2
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

# Each colour has one meaning in all figures, and on the page. Kinds of work and the quoted numbers
# have Okabe and Ito's colours; the other fidelities were chosen to differ from these, also for
# readers who see two primary colours only.
KINDS = {
    "F": "#56B4E9",
    "R": "#E69F00",
    "B": "#009E73",
    "I": "#0072B2",
    "W": "#CC79A7",
    "U": "#555555",
    "setup": "#F0E442",
}
IDLE = "#E9E9E9"  # a stage that waits, for whatever reason
SOFT = "#888888"  # lines and words that help to read a figure
KIND_WORDS = {
    "F": "F forward",
    "R": "R recompute",
    "B": "B backward",
    "I": "I gradient of inputs",
    "W": "W gradient of weights",
    "U": "U update",
    "setup": "set-up",
}
# Computation is F and B together, of which B is the larger. The last three are kinds of idle time.
PARTS = {
    "computation": KINDS["B"],
    "recompute": KINDS["R"],
    "update": KINDS["U"],
    "setup": KINDS["setup"],
    "bubble": IDLE,
    "imbalance": IDLE,
    "transfer": IDLE,
}
# What a stage holds all the time is grey. Inputs that a forward leaves have F's colour, and what is
# recomputed for a backward has R's.
MEMORY = {
    "parameters": KINDS["U"],
    "gradients": SOFT,
    "optimizer": "#BBBBBB",
    "boundary": KINDS["F"],
    "activations": KINDS["R"],
    "messages": IDLE,
    "buffers": IDLE,
}
_HATCHES = {"imbalance": "////", "transfer": "xxxx"}
PART_NAMES = {"setup": "set-up"}  # in legends; the others are called what they are
MODELS = {"amoebanet-d": "AmoebaNet-D", "amoebanet-b": "AmoebaNet-B", "transformer": "Transformer"}
MARKERS = {"quoted": "D", "measured": "o", "emulated": "s", "simulated": "^", "counted": "v"}
FIDELITIES = {
    "quoted": "#D55E00",
    "measured": "#222222",
    "emulated": "#591B59",
    "simulated": "#8468E0",
    "counted": "#805326",
}
QUOTED = FIDELITIES["quoted"]
# A 95 % interval has caps. The range of a simulated number has none: one of ten cases exceeds it.
MODEL_ERROR = {"ecolor": "#222222", "capsize": 0, "elinewidth": 1.2}
THEORY = "#222222"  # the ideal, nobody's run: lines, and bars that are not filled


def series_colour(value: float) -> str:
    """The colour of K stages or M micro-batches in every figure, dark for few, light for many."""
    return to_hex(colormaps["plasma"](min(0.87, 0.04 + log2(value) / 6)))


def ink(colour: str) -> str:
    """The colour of words on it: what is read better, by the luminance that WCAG defines."""
    parts = to_rgb(colour)
    red, green, blue = (x / 12.92 if x <= 0.04 else ((x + 0.055) / 1.055) ** 2.4 for x in parts)
    return "#FFFFFF" if 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.18 else "#111111"


def part_look(part: str) -> dict[str, Any]:
    """How a bar of a part of a step looks; kinds of idle time differ in their hatches alone."""
    look: dict[str, Any] = {"facecolor": PARTS[part], "edgecolor": SOFT, "linewidth": 0.4}
    look |= {"hatch": _HATCHES.get(part, ""), "height": 0.72}
    return look | {"label": PART_NAMES.get(part, part)}


def model_name(model: str) -> str:
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
    axes.set_xticks(at, [f"{value:g}" for value in at] if labels is None else labels)
    axes.minorticks_off()


def plain_log_ticks(axis: Axis) -> None:
    """Plain numbers on a logarithmic axis, also where it spans less than a decade."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())


def rows_of_names(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)


def dots(fidelity: str, **more: Any) -> dict[str, Any]:
    look = {"marker": MARKERS[fidelity], "color": FIDELITIES[fidelity], "linestyle": ""}
    return look | more


def over_m(axes: Axes, Ms: Iterable[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xlabel("M micro-batches")
    ticks(axes, sorted(set(Ms)))


def legend_below(figure: Figure, *panels: Axes) -> None:
    """One legend under the figure, which has each label of its panels once."""
    handles: dict[str, Any] = {}
    for axes in panels:
        found, labels = axes.get_legend_handles_labels()
        handles = dict(zip(labels, found, strict=True)) | handles
    figure.legend([*handles.values()], [*handles], loc="outside lower center", ncols=len(handles))


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


def save(figure: Figure, stem: Path, title: str) -> None:
    """Write `stem`.png and `stem`.svg: of the same figure always the same bytes.

    The svg file has the title, for screen readers.
    """
    stem.parent.mkdir(parents=True, exist_ok=True)
    # Laid out once, for all formats.
    layout = figure.get_layout_engine()
    if layout is not None:
        layout.execute(figure)
    figure.set_layout_engine("none")
    # The last bits of what the layout's solver finds differ from run to run.
    for axes in figure.axes:
        left, bottom, width, height = (round(edge, 4) for edge in axes.get_position().bounds)
        axes.set_position((left, bottom, width, height))
    of_png, of_svg = {"Software": None}, {"Date": None, "Creator": None, "Title": title}
    for kind, metadata in (("png", of_png), ("svg", of_svg)):
        figure.savefig(stem.with_name(f"{stem.name}.{kind}"), metadata=metadata)
    plt.close(figure)
