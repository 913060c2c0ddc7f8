"""Plain tables and lines for the terminal; a pipe gets them unwrapped."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_NOTHING = ("-", "")
_UNLIMITED_WIDTH = 2000  # columns; wider than any table of ours
_LEAST_WRAPPED = 24  # characters of a line in a column that may take several lines


def show(parts: "Iterable[RenderableType]", file: IO[str] | None = None) -> None:
    """Print parts, tables fitted to the terminal; without a terminal nothing is wrapped."""
    from rich.console import Console
    from rich.table import Table

    console = Console(file=file, highlight=False, markup=False, emoji=False, soft_wrap=True)
    # FORCE_COLOR makes no terminal of a pipe.
    width = console.width if console.file.isatty() else _UNLIMITED_WIDTH
    for part in parts:
        # rich would drop columns of a table that is too wide; the terminal breaks its lines.
        whole = isinstance(part, Table) and _unwrapped(part) + _LEAST_WRAPPED > width
        console.width = _UNLIMITED_WIDTH if whole else width
        console.print(part)


@contextmanager
def live(text: str) -> Iterator[Callable[[str], None]]:
    """A line on stderr that shows what goes on, and a function to change it; a pipe gets none."""
    from rich.console import Console

    # FORCE_COLOR makes no terminal of a pipe.
    console = Console(stderr=True, markup=False, force_terminal=sys.stderr.isatty())
    with console.status(text) as status:
        yield status.update


def _unwrapped(table: "Table") -> int:
    """The width of the columns that take one line."""
    from rich.cells import cell_len

    columns = [column for column in table.columns if column.no_wrap]
    cells = [[str(each) for each in (column.header, *column.cells)] for column in columns]
    return sum(max(map(cell_len, texts)) + 2 for texts in cells)


def table_of(lines: Sequence[Mapping[str, str]], wrapped: Sequence[str]) -> "Table":
    """A table of lines, each column -> text, without columns that are empty in every line.

    Words are aligned left; a number with its unit, such as `4.90 GiB`, right. Columns in `wrapped`
    may take several lines.
    """
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    columns = {}
    for name in lines[0]:
        if texts := [line[name] for line in lines if line[name] not in _NOTHING]:
            columns[name] = any(not text[0].isdigit() or text.count(" ") > 1 for text in texts)
    for name, has_words in columns.items():
        side = "left" if has_words else "right"
        table.add_column(name, justify=side, no_wrap=name not in wrapped, overflow="fold")
    for line in lines:
        table.add_row(*(line[name] for name in columns))
    return table
