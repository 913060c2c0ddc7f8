"""The answer of a verb: its fields, which `--json` prints, and the parts that a terminal shows."""

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from repro.harness.terminal import show, table_of

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


def rows(
    items: Iterable[Item],
    columns: Mapping[str, Callable[[Item], object]],
    left: Sequence[str] = (),
    wrapped: Sequence[str] = (),
) -> "RenderableType":
    """A table with a line for each item.

    Args:
        items: what the lines are about.
        columns: title -> what stands there for an item.
        left: titles of columns that hold words.
        wrapped: titles of columns whose cells may take several lines.
    """
    lines = [[str(cell(item)) for cell in columns.values()] for item in items]
    return table_of(tuple(columns), lines, left, wrapped=wrapped)
