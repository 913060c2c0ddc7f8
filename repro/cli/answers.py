"""The answer of a verb: texts for a terminal, and fields, which `--json` prints.

The name of a field has its unit: `_s` are seconds, `bytes` bytes, and `speedup` begins a ratio.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic_core import to_json

from repro.harness.terminal import show, table_of
from repro.io.called import as_called

if TYPE_CHECKING:
    from rich.console import RenderableType


def print_answer(
    shown: Mapping[str, Any], fields: Mapping[str, Any] | None = None, *, as_json: bool = False
) -> None:
    """Print an answer: what a terminal shows of it, or its fields as one JSON object.

    A terminal shows these in their order, but for empty ones: a text takes a line, a list of lines,
    each column -> text, is a table below its name. In JSON dataclasses are
    objects, and numbers that are not finite are null.
    """
    if as_json:
        print(to_json(fields, inf_nan_mode="null").decode())
    else:
        show(_parts(shown))


def same(value: object, *names: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


def _parts(shown: Mapping[str, Any]) -> "list[RenderableType]":
    from rich.table import Table

    parts: list[RenderableType] = []
    texts: Table | None = None  # those since the last table
    for name, value in shown.items():
        if value is None or value == []:
            continue
        is_table = isinstance(value, list)
        if parts and (texts is None or is_table):
            parts.append("")
        if is_table:
            parts += [name, table_of(value, wrapped=[*value[0]][-1:])]
            texts = None
            continue
        if texts is None:
            texts = Table.grid(padding=(0, 2))
            texts.add_column(style="bold", no_wrap=True)
            texts.add_column(overflow="fold")
            parts.append(texts)
        texts.add_row(name, as_called(str(value)))
    return parts
