"""How figures look and how they are saved: a style file, fixed colours, stable bytes."""

import os
import re
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from math import log2
from pathlib import Path
from typing import Any, Literal, NoReturn

import matplotlib.pyplot as plt
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from repro.io.files import fresh

# Each colour has one meaning in all figures, and on the page. Kinds of work and the quoted numbers
# have Okabe and Ito's colours; the other fidelities were chosen to differ from these, also for
# readers who see two primary colours only (tests/report/test_style.py).
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
# Where a colour tells K or M, the marker alone tells the fidelity.
FIDELITIES = {
    "quoted": "#D55E00",
    "measured": "#222222",
    "emulated": "#591B59",
    "simulated": "#8468E0",
    "counted": "#805326",
}
QUOTED = FIDELITIES["quoted"]
# A 95 % interval has caps. The median error of a cost model has none: half of all cases exceed it.
MODEL_ERROR = {"ecolor": "#222222", "capsize": 0, "elinewidth": 1.2}
THEORY = "#222222"  # the ideal, nobody's run: lines, and bars that are not filled
INK = {True: "#FFFFFF", False: "#111111"}  # of words on a dark colour, and on a light one
FORMATS = ("png", "svg")


def series_colour(value: float) -> str:
    """The colour of K stages or M micro-batches in every figure, dark for few, light for many."""
    return to_hex(colormaps["plasma"](min(0.87, 0.04 + log2(value) / 6)))


def is_dark(colour: str) -> bool:
    """Whether words on this colour have to be white."""
    red, green, blue = to_rgb(colour)
    return 0.299 * red + 0.587 * green + 0.114 * blue < 0.5


def part_look(part: str) -> dict[str, Any]:
    """How a part of a step is filled; kinds of idle time have one colour and differ in hatches."""
    look: dict[str, Any] = {"facecolor": PARTS[part], "edgecolor": SOFT, "linewidth": 0.4}
    return look | {"hatch": _HATCHES.get(part, "")}


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
    grey = KINDS["U"]
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
        plt.rcParams["figure.max_open_warning"] = 0  # a report's figures are saved together
        try:
            yield
        finally:
            plt.close("all")


def save_all(figures: Sequence[tuple[Figure, Path]]) -> None:
    """Save each figure, with a second process where that is safe."""
    # A copy of a process with several threads may wait for a lock that no thread of it holds.
    if len(figures) < 2 or not hasattr(os, "fork") or threading.active_count() > 1:
        for figure, stem in figures:
            save(figure, stem)
        return
    # Each process takes the next number from a pipe, since some figures take longer than others.
    taken, given = os.pipe()
    os.write(given, bytes(range(len(figures))))
    os.close(given)
    with warnings.catch_warnings():
        # Python counts the threads of numpy's BLAS too, which is prepared for copies.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        _save_and_exit(figures, taken)
    ours = _save_those(figures, taken)
    os.close(taken)
    # What the copy could not save is saved here, where an error is seen.
    if os.waitpid(child, 0)[1] != 0:
        for index, (figure, stem) in enumerate(figures):
            if index not in ours:
                save(figure, stem)


def _save_those(figures: Sequence[tuple[Figure, Path]], taken: int) -> set[int]:
    """Save the figures whose numbers this process gets from the pipe; returns these numbers."""
    ours = set()
    while number := os.read(taken, 1):
        save(*figures[number[0]])
        ours.add(number[0])
    return ours


def _save_and_exit(figures: Sequence[tuple[Figure, Path]], taken: int) -> NoReturn:
    status = 1
    try:
        _save_those(figures, taken)
        status = 0
    finally:
        # No handlers of the process that this one is a copy of.
        os._exit(status)


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write `stem`.png and `stem`.svg: of the same figure always the same bytes."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = [stem.parent / f"{stem.name}.{kind}" for kind in FORMATS]
    # Laid out once, for all formats.
    layout = figure.get_layout_engine()
    if layout is not None:
        layout.execute(figure)
    figure.set_layout_engine("none")
    # The last bits of what the layout's solver finds differ from run to run.
    for axes in figure.axes:
        left, bottom, width, height = (round(edge, 4) for edge in axes.get_position().bounds)
        axes.set_position((left, bottom, width, height))
    # Not by savefig, which draws a figure twice for each format.
    figure.set_dpi(plt.rcParams["savefig.dpi"])
    FigureCanvasAgg(figure).print_png(fresh(paths[0]), metadata={"Software": None})
    drawn = StringIO()
    FigureCanvasSVG(figure).print_svg(drawn, metadata={"Date": None, "Creator": None})
    fresh(paths[1]).write_text(_compact(drawn.getvalue()), encoding="utf-8")
    plt.close(figure)
    return paths


def _compact(svg: str) -> str:
    """The same picture in fewer bytes, and with nothing that reaches beyond it on a page."""
    svg = re.sub(r" *<metadata>.*?</metadata>\n", "", svg, flags=re.DOTALL)
    # What the whole picture has stands at its root once. A style element would hold for the page.
    svg = re.sub(r" *<defs>\n *<style.*?</style>\n *</defs>\n", "", svg, flags=re.DOTALL)
    family = re.search(r" font-family: ([^;]*);", svg)
    inherited = 'stroke-linejoin="round" stroke-linecap="butt"'
    if family:
        svg = svg.replace(family[0], "")
        inherited += f' font-family="{family[1]}"'
    svg = svg.replace("<svg ", f"<svg {inherited} ", 1)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)  # nothing refers to them
    svg = re.sub(r' transform="rotate\(-0 [^"]*"', "", svg)
    svg = re.sub(r"\n +", "\n", svg)
    return re.sub(r"<[^>]*>", _compact_tag, svg)


def _compact_tag(tag: re.Match[str]) -> str:
    """One tag in fewer bytes: a tenth of a point is finer than a screen shows."""
    text = re.sub(r"-?\d+\.\d{3,}", lambda number: f"{round(float(number[0]), 1):g}", tag[0])
    if text.startswith("<path"):
        text = re.sub(r" ?\n(?=[LMCQz\"])", "", text)
        text = _BOX.sub(_as_steps, text)
    return re.sub(r"(?<=[a-z]): |; (?=[a-z])", lambda sign: sign[0].strip(), text)


# A rectangle as matplotlib writes it: corner by corner.
_BOX = re.compile(r"M (\S+) (\S+)L (\S+) \2L \3 (\S+)L \1 \4(?:L \1 \2)?z ?")


def _as_steps(box: re.Match[str]) -> str:
    """A rectangle as its first corner, its width and its height."""
    left, low, right, high = (float(number) for number in box.groups())
    return f"M{left:g} {low:g}h{right - left:.4g}v{high - low:.4g}h{left - right:.4g}z"
