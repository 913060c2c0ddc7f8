"""The numbers of figures as rows of a csv file, read off what was drawn.

Read are bars and points. Lines without markers are closed forms, and a step of a timeline is in the
experiment's `.trace.json`.
"""

import re
from collections.abc import Iterator
from math import nan
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_hex
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FuncFormatter

from repro.report.style import FIDELITIES

_MADE_UP = re.compile(r"_(child|container)\d+|_nolegend_")  # matplotlib's own labels


class Number(NamedTuple):
    """One number of a figure.

    Attributes:
        figure: its name.
        panel: title of the panel, or else its axis' name.
        series: what the legend calls it, or its fidelity.
        at: the other coordinate: a number, or the name at the tick.
        value: the number.
        low: lower end of its interval; NaN without one.
        high: upper end of it.
    """

    figure: str
    panel: str
    series: str
    at: str
    value: float
    low: float = nan
    high: float = nan


def numbers(figure: Figure, name: str) -> list[Number]:
    """Every number of a figure, in the order in which it was drawn."""
    return [drawn for axes in figure.axes for drawn in _of_panel(axes, name)]


def _of_panel(axes: Axes, name: str) -> Iterator[Number]:
    title = axes.get_title(loc="left") or axes.get_xlabel()
    panel = " ".join(title.split())
    # Where ticks on y have names, values are on x.
    across = not _is_number(_at(axes.yaxis, 0))
    of_intervals = set()
    for container in axes.containers:
        series = _series(container)
        if isinstance(container, BarContainer):
            ends = _ends(container.errorbar, across)
            for index, patch in enumerate(container.patches):
                value = float(patch.get_width() if across else patch.get_height())
                middle = patch.get_y() + patch.get_height() / 2
                if not across:
                    middle = patch.get_x() + patch.get_width() / 2
                at = _at(axes.yaxis if across else axes.xaxis, middle)
                yield Number(name, panel, series, at, value, *(ends[index] if ends else ()))
        elif isinstance(container, ErrorbarContainer):
            line, caps, _ = container.lines
            of_intervals |= {line, *caps}
            if line is not None:
                series = series or _series(line)
                ends = _ends(container, across)
                for index, (at, value) in enumerate(_points(axes, line, across)):
                    yield Number(name, panel, series, at, value, *(ends[index] if ends else ()))
    for line in axes.get_lines():
        # A line without markers is a closed form.
        if line not in of_intervals and line.get_marker() not in ("", "None", None):
            for at, value in _points(axes, line, across):
                yield Number(name, panel, _series(line), at, value)


def _ends(intervals: ErrorbarContainer | None, across: bool) -> list[tuple[float, float]]:
    """The ends of each interval; NaN for one without length, which is that of too few rounds."""
    if intervals is None:
        return []
    segments: list[Any] = [part for bar in intervals.lines[2] for part in bar.get_segments()]
    axis = 0 if across else 1
    ends = [(float(first[axis]), float(last[axis])) for first, last in segments]
    return [(nan, nan) if low == high else (low, high) for low, high in ends]


def _points(axes: Axes, line: Any, across: bool) -> Iterator[tuple[str, float]]:
    for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True):
        at, value = (_at(axes.yaxis, y), x) if across else (_at(axes.xaxis, x), y)
        yield at, float(value)


def _series(artist: Any) -> str:
    """The name in the legend, or one that a legend leaves out; else the fidelity of the colour."""
    label = str(artist.get_label())
    if label and not _MADE_UP.fullmatch(label):
        return label.removeprefix("_")
    colour = getattr(artist, "get_color", lambda: None)()
    if colour is None:
        return ""
    by_colour = {of: fidelity for fidelity, of in FIDELITIES.items()}
    return by_colour.get(to_hex(colour).upper(), "")


def _name_at(axis: Axis, place: float) -> str | None:
    """The name of the nearest tick; None where ticks have no names of their own."""
    formatter = axis.get_major_formatter()
    if not isinstance(formatter, (FixedFormatter, FuncFormatter)):
        return None
    ticks = list(axis.get_majorticklocs())
    labels = formatter.format_ticks(ticks)
    nearest = min(range(len(ticks)), key=lambda index: abs(ticks[index] - place))
    return " ".join(labels[nearest].split())


def _at(axis: Axis, place: float) -> str:
    """The name of the nearest tick, or the number."""
    name = _name_at(axis, place)
    return f"{float(place):g}" if name is None else name


def _is_number(text: str) -> bool:
    try:
        float(text.replace("\N{MINUS SIGN}", "-"))
    except ValueError:
        return False
    return True
