"""Readers of files that others may have written: JSON and parquet tables.

Whatever the bytes, the result is a value or a `ValueError` of one line. Only dicts, lists, texts,
numbers, true, false and null are constructed, so reading runs no code. A file that is larger or
deeper than one of ours can be is refused before it costs memory or time.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from repro.io.explain import explain
from repro.io.untrusted import (
    LARGE,
    SMALL,
    from_json,
    read_bytes,
    read_text,
    short,
    with_article,
)

_MOST_ROWS = 2**20  # of a table
_MOST_LETTERS = 64  # of a text in a table
# Models that our own code and timm's registry build. Any other name may load or run something else.
_BUILT_IN = re.compile(r"(timm:)?[A-Za-z0-9_.-]+")

T = TypeVar("T", bound=BaseModel)


def read(path: Path, kind: type[T], limit: int = SMALL) -> T:
    """Read a JSON file as a pydantic model.

    Args:
        path: of the file.
        kind: the model.
        limit: the most bytes.

    Raises:
        ValueError: one line that names the file, what is wrong and what to try.
    """
    try:
        return parsed(read_text(path, limit), kind)
    except ValueError as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from None


def parsed(text: str, kind: type[T]) -> T:
    """A JSON text as a pydantic model; raises a ValueError of one line."""
    value = from_json(text)
    if not isinstance(value, dict):
        raise ValueError(
            f"holds {with_article(value)}, allowed is an object with the fields of {kind.__name__}"
        )
    try:
        return kind(**value)
    except ValidationError as error:
        raise ValueError(explain(error, kind)) from None


def consent(source: str, model: str, *, trusted: bool) -> str:
    """Check a model's name that comes from a file; call it before anything is built from the name.

    Such a name can be any function of any Python module, with any arguments: `import:os:system`
    runs a program. A name that the user typed, or that is in an experiment's .py file, needs no
    check.

    Args:
        source: of the name, for messages, such as "--spec theirs.json".
        model: the name.
        trusted: whether the user allowed this code to run.

    Returns:
        A line about the code that will run; empty if the name is no code.

    Raises:
        ValueError: one line, if the name is code that is not trusted, or no name of a model.
    """
    if _BUILT_IN.fullmatch(model):
        return ""
    prefix, _, path = model.partition(":")
    if prefix != "import":
        raise ValueError(
            f"{source} names the model {short(model)}: allowed are names of `repro.models`, "
            "timm:NAME of timm's own list, and import:package.module:function; correct it"
        )
    module, _, function = path.partition(":")
    text = f"{source} names code: it imports the Python module {module} and calls {function}"
    if not trusted:
        raise ValueError(f"{text} with the model_args; look at both, then add --trust to run it")
    return f"{text}, as --trust allows"


def read_table(
    path: Path, columns: Mapping[str, type], within: Path | None = None
) -> list[dict[str, Any]]:
    """Read columns of a parquet file.

    Args:
        path: of the file.
        columns: name -> int, float or str; texts are short.
        within: a folder that no link may lead out of.

    Returns:
        A dict per row.

    Raises:
        ValueError: one line, which does not name the file.
    """
    from pyarrow import BufferReader, parquet

    raw = read_bytes(path, LARGE, within=within)
    try:
        with parquet.ParquetFile(BufferReader(raw)) as file:
            if not file.metadata.num_rows:
                return []
            _check_table(file, columns)
        texts = [name for name, kind in columns.items() if kind is str]
        # As dictionaries, each text is in memory once, so that long repeated texts are found
        # before they take memory.
        with parquet.ParquetFile(BufferReader(raw), read_dictionary=texts) as file:
            table = file.read(columns=list(columns), use_threads=False)
        for name in texts:
            texts_once = table.column(name).combine_chunks().dictionary
            if any(len(text.as_py() or "") > _MOST_LETTERS for text in texts_once):
                raise ValueError(f"{name} holds a text of more than {_MOST_LETTERS} characters")
        return table.to_pylist()
    except Exception as error:  # a damaged file fails in many ways
        raise ValueError(
            f"no table that can be read ({' '.join(str(error).split())[:200]})"
        ) from None


def _check_table(file: Any, columns: Mapping[str, type]) -> None:
    """Raise a ValueError if a parquet file is too large or lacks a column of this type."""
    from pyarrow import types

    meta = file.metadata
    size = sum(meta.row_group(number).total_byte_size for number in range(meta.num_row_groups))
    if meta.num_rows > _MOST_ROWS or size > LARGE:
        raise ValueError(f"more than {_MOST_ROWS} rows or {LARGE} bytes")
    is_kind = {int: types.is_integer, float: types.is_floating, str: _is_text}
    for name, kind in columns.items():
        index = file.schema_arrow.get_field_index(name)
        if index < 0 or not is_kind[kind](file.schema_arrow.field(index).type):
            raise ValueError(f"no column {name} of type {kind.__name__}")


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    return types.is_string(kind) or types.is_large_string(kind)
