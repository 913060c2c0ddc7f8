"""How figures look and how they are saved: a style file, fixed colours, stable bytes."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import log2
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_hex
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


def model_name(model: str) -> str:
    return MODELS.get(model, model)


def grid(
    rows: int, columns: int, height: float, *, gap: float = 0.8, legend: bool = True
) -> tuple[Figure, list[list[Axes]]]:
    """A figure of README width and its panels, in inches.

    Args:
        height: of every row, with what is above and below it.
        gap: between two rows, for ticks, a label and a title.
        legend: whether there is one under the last row.
    """
    wide, tall, below = 9, rows * height + 0.4, 0.9 if legend else 0.55
    left, right, top, between = 0.75, 0.15, 0.35, 0.75
    figure, axes = plt.subplots(rows, columns, figsize=(wide, tall), squeeze=False)
    panel_height = (tall - top - below - gap * (rows - 1)) / rows
    panel_width = (wide - left - right - between * (columns - 1)) / columns
    figure.subplots_adjust(
        left=left / wide,
        right=1 - right / wide,
        bottom=below / tall,
        top=1 - top / tall,
        hspace=gap / panel_height,
        wspace=between / panel_width,
    )
    return figure, [list(line) for line in axes]


def in_pairs(count: int, height: float) -> tuple[Figure, list[Axes]]:
    """A figure of README width and as many panels, two in a row of that height in inches."""
    figure, axes = grid((count + 1) // 2, 2, height)
    panels = [panel for line in axes for panel in line]
    for panel in panels[count:]:
        panel.remove()
    return figure, panels[:count]


def plain_log_ticks(axis: Axis) -> None:
    """Plain numbers on a logarithmic axis, also where it spans less than a decade."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())


def dots(fidelity: str, **more: Any) -> dict[str, Any]:
    look = {"marker": MARKERS[fidelity], "color": FIDELITIES[fidelity], "linestyle": ""}
    return look | more


def over_m(axes: Axes, Ms: Iterable[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xlabel("M micro-batches")
    shown = sorted(set(Ms))
    axes.set_xticks(shown, map(str, shown))
    axes.minorticks_off()


def legend_below(figure: Figure, *panels: Axes) -> None:
    """One legend under the figure, which has each label of its panels once."""
    handles: dict[str, Any] = {}
    for axes in panels:
        found, labels = axes.get_legend_handles_labels()
        handles = dict(zip(labels, found, strict=True)) | handles
    figure.legend([*handles.values()], [*handles], loc="lower center", ncols=len(handles))


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


def save(figure: Figure, path: Path, title: str) -> None:
    """Write an svg file, with a title for screen readers: of the same figure the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None, "Creator": None, "Title": title})
    plt.close(figure)
