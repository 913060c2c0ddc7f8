"""Answers of verbs on the terminal: plain tables and lines, which a pipe gets as they are."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

_WHOLE = 300  # columns that no table of ours takes


def show(parts: "Iterable[RenderableType]") -> None:
    """Print the parts of an answer one below the other, texts as they stand."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False, soft_wrap=True)
    wide = Console(highlight=False, markup=False, soft_wrap=True, width=_WHOLE)
    for part in parts:
        # A table whose cells may not be cut is printed whole, and the terminal wraps it.
        whole = isinstance(part, Table) and all(column.no_wrap for column in part.columns)
        (wide if whole else console).print(part)


def table_of(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    left: Sequence[str],
    title: str | None = None,
    wrapped: Sequence[str] = (),
) -> "RenderableType":
    """A table for the terminal.

    Args:
        columns: their names.
        rows: of cells.
        left: columns that hold words, which begin at the left; the others hold numbers.
        title: above it.
        wrapped: columns that may take several lines.
    """
    from rich.table import Table

    table = Table(
        box=None, pad_edge=False, padding=(0, 2, 0, 0), title=title, title_justify="left", header_style="bold"
    )
    for name in columns:
        table.add_column(name, justify="left" if name in left else "right", no_wrap=name not in wrapped)
    for row in rows:
        table.add_row(*row)
    return table


def memory(size: float) -> str:
    """`1.50 GiB`, or `12.3 MiB`."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
