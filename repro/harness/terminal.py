"""Plain tables, lines and numbers for the terminal; a pipe gets them unwrapped."""

import math
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


def memory(size: float) -> str:
    """`1.50 GiB`, or `12.3 MiB`."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"


def number(value: float) -> str:
    """Three significant digits, or a whole number from 1000 on: `9,990`, `178`, `0.0123`."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) >= 999.5:
        return f"{value:,.0f}"
    rounded = float(f"{value:.3g}")
    return f"{rounded:.{max(0, 2 - math.floor(math.log10(abs(rounded))))}f}"


def seconds(value: float) -> str:
    """`1.24 s`, `3.20 ms` or `85.0 us`."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if value * factor >= 0.9995:
            return f"{number(value * factor)} {unit}"
    return f"{number(value * 1e6)} us"


def rate(value: float, unit: str) -> str:
    """`9,990 images/s`."""
    return f"{number(value)} {unit}"


def size(nbytes: float) -> str:
    """`1.24 GiB`, `12.3 MiB`, `512 KiB` or `64 B`."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= factor:
            return f"{number(nbytes / factor)} {unit}"
    return f"{number(nbytes)} B"
