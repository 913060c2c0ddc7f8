"""Tables made from pandas frames: one column of a frame is one column of the csv file.

`X: low` and `X: high` are the ends of the interval of the column X, which shows them. What a number
looks like follows from its column's name, in `FORMS`, unless the table says otherwise. A text in a
column of numbers stays as it is, and so does a `Cell`, whose text is not that of its number.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from math import nan
from typing import Any

import pandas as pd

from repro.harness.about import NO_INTERVAL, About
from repro.harness.frame import Frame
from repro.harness.text import EMPTY, digits, percent, printed, ranged
from repro.report.claim import Estimate
from repro.report.style import model_name
from repro.report.table import NOT_RUN, Cell, Table
from repro.simulate.breakdown import PARTS

Form = Callable[[Any], str]
# What a column's name says of its numbers: the first that matches.
FORMS: tuple[tuple[str, Form], ...] = (
    (r"^model$", model_name),
    (r"\bpaper$", printed),
    (r"\b(idle|bubble|share|theory|transfer)\b", percent),
    (r"", digits),
)
LOW, HIGH = ": low", ": high"
MARKS = f"(low to high): 95 % interval over rounds and their blocks, {NO_INTERVAL}."


def framed(
    name: str,
    frame: Frame,
    about: About,
    *,
    forms: Mapping[str, Form] | None = None,
    data: Frame | None = None,
    **values: object,
) -> Table:
    """The table of a frame, with the title and note that `about` has under its name.

    A column `where` is left out where all lines are of one place.

    Args:
        forms: column -> form of its numbers.
        data: what the csv file holds, where that is not this frame.
        values: for the braces in title and note.
    """
    words = about.words[name].filled(**values)
    if "where" in frame and len(set(frame["where"])) < 2:
        frame = frame.drop(columns="where")
    shown, own = in_two(frame, forms=forms)
    data = own if data is None else data.astype(object)
    return Table(name, words.title, words.note, shown, data)


def in_two(frame: Frame, *, forms: Mapping[str, Form] | None = None) -> tuple[Frame, Frame]:
    """What a reader sees of a frame, and what the csv file holds of it."""
    shown, data = {}, {}
    for column in (name for name in frame if not name.endswith((LOW, HIGH))):
        named = next(form for pattern, form in FORMS if re.search(pattern, column))
        form = (forms or {}).get(column, named)
        ends = [end for end in (column + LOW, column + HIGH) if end in frame]
        lines = frame[[column, *ends]].itertuples(index=False)
        shown[column] = [text_of(form, *line) for line in lines]
        data[column] = [cell.value if isinstance(cell, Cell) else cell for cell in frame[column]]
        data |= {end: [*frame[end]] for end in ends}
    return pd.DataFrame(shown, dtype=object), pd.DataFrame(data, dtype=object)


def or_status(frame: Frame, column: str) -> pd.Series:
    """A column of `runs_frame`; where a run is not done, readers see its status, such as `oom`."""
    missing = frame["status"].replace("planned", NOT_RUN).map(lambda status: Cell(nan, status))
    no_run = frame["status"].isna()
    return frame[column].astype(object).where(no_run | (frame["status"] == "done"), missing)


def estimated(column: str, estimate: Estimate) -> dict[str, float]:
    return dict(zip((column, column + LOW, column + HIGH), estimate, strict=True))


def with_interval(frame: Frame, column: str, estimates: Iterable[Estimate]) -> Frame:
    """The frame with a column of medians or means, and those of the ends of their intervals."""
    names = [column, column + LOW, column + HIGH]
    return frame.assign(**pd.DataFrame([*estimates], index=frame.index, columns=names))


def with_parts(frame: Frame) -> Frame:
    """A frame of runs with the share of K x step of each of `PARTS`; NaN without a breakdown."""
    rounds = [(line, each.breakdown) for line, run in frame["run"].items() for each in run.rounds]
    shares = pd.DataFrame([share for _, share in rounds], columns=[*PARTS], dtype=float)
    shares = shares.groupby([line for line, _ in rounds]).median()
    # A mode of recomputation makes way for its share.
    return frame.drop(columns=[*PARTS], errors="ignore").join(shares)


def error_bars(frame: Frame, column: str) -> list[pd.Series]:
    """For matplotlib: how far the ends of a column's intervals are from it; 0 without one."""
    return lengths(frame[column], frame[column + LOW], frame[column + HIGH])


def lengths(value: pd.Series, low: pd.Series, high: pd.Series) -> list[pd.Series]:
    return [(value - low).fillna(0), (high - value).fillna(0)]


def text_of(form: Form, value: Any, low: float = nan, high: float = nan) -> str:
    if hasattr(value, "item"):
        value = value.item()  # a number of numpy's
    if isinstance(value, Cell):
        return value.text
    if value is None or value != value:  # NaN
        return EMPTY
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return model_name(value) if form is model_name else value
    if value == low == high == 1:
        return "1 (baseline)"
    return ranged(value, low, high) if form is digits else form(value)
