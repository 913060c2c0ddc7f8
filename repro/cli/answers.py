"""The answer of a verb: its fields, which `--json` prints, and the parts that a terminal shows."""

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from repro.harness.terminal import show, table_of
from repro.harness.text import seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

Item = TypeVar("Item")


def tell(
    fields: Mapping[str, Any], parts: "Callable[[], Iterable[RenderableType]]", *, as_json: bool
) -> None:
    """Print an answer: its fields as one JSON object, or lines and tables for the terminal."""
    if as_json:
        print(json.dumps(plain(fields)))
    else:
        show(parts())


def plain(value: Any) -> Any:
    """A value as JSON holds it: dataclasses are objects, numbers that are not finite are null."""
    if dataclasses.is_dataclass(value):
        shown = [field.name for field in dataclasses.fields(value) if field.repr]
        return {name: plain(getattr(value, name)) for name in shown}
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def same(value: object, *names: str) -> dict[str, Any]:
    """These attributes of a value, by name."""
    return {name: getattr(value, name) for name in names}


def shown(fields: Mapping[str, Any]) -> "list[RenderableType]":
    """Fields as a terminal shows them: a line for each value, and a table for each list of rows."""
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    tables: list[RenderableType] = []
    for name, value in fields.items():
        title = name.removesuffix("_s").replace("_", " ")
        if not isinstance(value, list):
            grid.add_row(title, _cell(name, value))
        elif value:
            columns = list(value[0])
            words = [each for each in columns if isinstance(value[0][each], str)]
            cells = [[_cell(each, row[each]) for each in columns] for row in value]
            tables += [f"\n{title}", table_of(columns, cells, words)]
    return [grid, *tables]


def _cell(name: str, value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_cell(name, part)}" for key, part in value.items())
    if not isinstance(value, float):
        return "-" if value is None else str(value)
    return seconds(value) if name.endswith("_s") else f"{value:.1%}"


def rows(
    items: Iterable[Item],
    columns: Mapping[str, Callable[[Item], object]],
    left: Sequence[str] = (),
    wrapped: Sequence[str] = (),
) -> "RenderableType":
    """A table with a line for each item: title -> what stands in that column for an item."""
    lines = [[str(cell(item)) for cell in columns.values()] for item in items]
    return table_of(tuple(columns), lines, left, wrapped=wrapped)
