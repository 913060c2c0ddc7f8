"""The answer of a verb is a value: its fields, which `--json` prints and a terminal shows.

The name of a field has its unit: `_s` are seconds, `bytes` bytes, and `speedup` begins a ratio.
Any other number that is not whole is a share.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json

from repro.harness.terminal import show, table_of
from repro.harness.text import TIMES, digits, percent, ranged, seconds, size

if TYPE_CHECKING:
    from rich.console import RenderableType

# Names that a reader is shown in place of a field's own.
_TITLES = {"checkpoint": "recompute", "peak_bytes": "peak"}
_TITLES |= {"speedup_vs_plain": "over plain", "speedup_vs_k1": "over K=1"}
_TITLES |= {"idle_over_total": "idle"}


def print_answer(
    terminal: Mapping[str, Any], fields: Mapping[str, Any] | None = None, *, as_json: bool = False
) -> None:
    """Print an answer: what a terminal shows of it, or its fields as one JSON object.

    There dataclasses are objects, and numbers that are not finite are null.
    """
    if as_json:
        print(to_json(fields, inf_nan_mode="null").decode())
    else:
        show(shown(terminal))


def same(value: object, *names: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


def shown(fields: Mapping[str, Any]) -> "list[RenderableType]":
    """Fields as a terminal shows them, in their order.

    A value takes a line, a list of mappings is a table, and a drawing is below its name.
    """
    from rich.table import Table
    from rich.text import Text

    parts: list[RenderableType] = []
    lines: Table | None = None  # the values since the last table
    for name, value in fields.items():
        title = _TITLES.get(name, name.removesuffix("_s").replace("_", " "))
        if value is None or value == []:
            continue
        block = value if isinstance(value, Text) else None
        if isinstance(value, list) and isinstance(value[0], Mapping):
            block = rows(value)
        if parts and (lines is None or block):
            parts.append("")
        if block:
            parts += [title, block]
            lines = None
            continue
        if lines is None:
            lines = Table.grid(padding=(0, 2))
            lines.add_column(style="bold", no_wrap=True)
            lines.add_column(overflow="fold")
            parts.append(lines)
        lines.add_row(title, _cell(name, value))
    return parts


def rows(items: Sequence[Mapping[str, Any]]) -> "RenderableType":
    """A table with a line for each item, without empty columns."""
    lines: list[dict[str, str]] = [{} for _ in items]
    for name in items[0]:
        values = [item[name] for item in items]
        title = _TITLES.get(name, name.replace("_", " "))
        cells = [_cell(name, value) for value in values]
        if name.endswith("_s"):
            # Times of one column are read against each other, so they share a unit.
            title = f"{title.removesuffix(' s')} (ms)"
            cells = ["-" if value is None else digits(1e3 * value) for value in values]
        for line, cell in zip(lines, cells, strict=True):
            line[title] = cell
    return table_of(lines, wrapped=[*lines[0]][-1:])


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_cell(name, part)}" for key, part in value.items())
    if name.startswith("peak"):  # of each device: the fullest one counts
        return size(max(value))
    if isinstance(value, list | tuple):
        return ", ".join(_cell(name, part) for part in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.startswith("speedup"):
        return ranged(value, unit=TIMES)
    if not isinstance(value, float):
        return str(value)
    return seconds(value) if name.endswith("_s") else percent(value)
