"""Plain tables and lines for the terminal; a pipe gets them unwrapped."""

from collections.abc import Iterable, Sequence
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_UNLIMITED_WIDTH = 2000  # columns; wider than any table of ours


def console_for(file: IO[str] | None = None, **options: Any) -> "Console":
    """A console that fits tables to its terminal; without a terminal nothing is wrapped."""
    from rich.console import Console

    console = Console(file=file, highlight=False, **options)
    if not console.is_terminal:
        console.width = _UNLIMITED_WIDTH
    return console


def show(parts: "Iterable[RenderableType]", file: IO[str] | None = None) -> None:
    """Print the parts of an answer one below the other, by default to standard output."""
    from rich.console import Console
    from rich.table import Table

    console = console_for(file, markup=False, soft_wrap=True)
    wide = Console(file=file, highlight=False, markup=False, soft_wrap=True, width=_UNLIMITED_WIDTH)
    for part in parts:
        # A table without wrapped columns is printed at full width; the terminal breaks its lines.
        if isinstance(part, Table) and all(column.no_wrap for column in part.columns):
            wide.print(part)
        else:
            console.print(part)


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
        left: names of columns that are aligned left, because they hold words.
        title: above the table.
        wrapped: names of columns whose cells may take several lines.
    """
    from rich.table import Table

    table = Table(
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
        title=title,
        title_justify="left",
        header_style="bold",
    )
    for name in columns:
        table.add_column(
            name, justify="left" if name in left else "right", no_wrap=name not in wrapped
        )
    for row in rows:
        table.add_row(*row)
    return table
