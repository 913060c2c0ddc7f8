"""Files from outside, read as plain data: whatever their bytes, a value or one `ValueError` that says what is wrong.

JSON, YAML without its tags and aliases, and tables in parquet. Nothing is constructed but dicts, lists, texts, numbers,
true, false and null, so nothing that is read here can run code. What is larger, deeper or otherwise more than a file
of ours can be is refused before it costs memory or time.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from repro.harness.files import open_regular

SMALL = 2**20  # bytes of a spec, a status or another file that holds one object
LARGE = 2**26  # bytes of a file that grows with every round, or with K x M
_YAML = 2**16  # bytes of YAML, which is written by hand and slow to read
_DEPTH = 32  # of lists and objects in each other
_PARTS = 2**20  # values in one value
_ROWS = 2**20  # of a table
_WORD = 64  # characters of a text in a table

T = TypeVar("T", bound=BaseModel)


def read(path: Path, kind: type[T], limit: int = SMALL) -> T:
    """A file as a `kind`: YAML where its name ends in .yaml or .yml, else JSON.

    Raises ValueError, one line that names the file, what is wrong and what to try.
    """
    try:
        if path.suffix.lower() in (".yaml", ".yml"):
            value = from_yaml(read_text(path, min(limit, _YAML)))
        else:
            value = from_json(read_text(path, limit))
        if not isinstance(value, dict):
            raise ValueError(f"holds {_article(value)}, allowed is an object with the fields of {kind.__name__}")
        return kind(**value)
    except ValidationError as error:
        raise ValueError(f"{path}: {in_words(error)}; correct it") from None
    except ValueError as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from None


def read_text(path: Path, limit: int) -> str:
    """A file's text, of at most `limit` bytes; raises ValueError, which does not name the file."""
    raw = _read_bytes(path, limit)
    if raw.startswith(b"\xef\xbb\xbf"):
        raise ValueError("begins with a byte order mark; save it as UTF-8 without one")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"is no UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8") from None


def from_json(text: str) -> Any:
    """The value of a JSON text, numbers finite and integers of 64 bits; raises ValueError."""
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_int=_integer)
    except json.JSONDecodeError as error:
        raise ValueError(f"not readable as JSON ({error}); correct it") from None
    except RecursionError:
        raise ValueError(f"not readable as JSON (more than {_DEPTH} lists and objects in each other)") from None
    check_plain(value)
    return value


def from_yaml(text: str) -> Any:
    """The value of a YAML text, of the part of YAML that JSON can say; raises ValueError.

    A word without quotes is what JSON takes it for (2, 1e-3, true, null), else text: `no` is a text.
    """
    import yaml

    try:
        value = _built(yaml.parse(text, Loader=yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ValueError(
            f"not readable as YAML (line {line}: {short(error.problem, quote=False)}); correct it"
        ) from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # of a number or a character that does not exist, too
        raise ValueError(f"not readable as YAML ({short(error, 160, quote=False)})") from None
    check_plain(value)
    return value


def check_plain(value: Any, most: int = _PARTS) -> None:
    """Raise a ValueError unless the value is one that JSON can hold, with at most `most` values in it."""
    level, count = [value], 0
    for _ in range(_DEPTH + 1):
        count += len(level)
        if count > most:
            raise ValueError(f"holds more than {most} values; give less")
        level = list(islice((part for one in level for part in _parts(one)), most + 1))
        if not level:
            return
    raise ValueError(f"holds more than {_DEPTH} lists and objects in each other; make it flatter")


def read_table(path: Path, columns: Mapping[str, type]) -> list[dict[str, Any]]:
    """The rows of a parquet file, of which these columns are read; raises ValueError, which does not name the file.

    Args:
        path: of the file.
        columns: name -> int, float or str; a text is a short word.
    """
    from pyarrow import BufferReader, parquet

    raw = _read_bytes(path, LARGE)
    try:
        with parquet.ParquetFile(BufferReader(raw)) as file:
            if not file.metadata.num_rows:
                return []
            _check_table(file, columns)
        texts = [name for name, kind in columns.items() if kind is str]
        # Each text once, however often it stands there: so it cannot unfold before it has been looked at.
        with parquet.ParquetFile(BufferReader(raw), read_dictionary=texts) as file:
            table = file.read(columns=list(columns), use_threads=False)
        for name in texts:
            words = table.column(name).combine_chunks().dictionary
            if any(len(word.as_py() or "") > _WORD for word in words):
                raise ValueError(f"{name} holds a text of more than {_WORD} characters")
        return table.to_pylist()
    except Exception as error:  # a damaged file fails in many ways
        raise ValueError(f"no table that can be read ({' '.join(str(error).split())[:200]})") from None


def in_words(error: ValidationError) -> str:
    """The first mistake of a pydantic error: where, and what is wrong."""
    first = error.errors(include_url=False)[0]
    return f"{short('.'.join(str(part) for part in first['loc']), quote=False)}: {first['msg'].lower()}"


def short(value: object, most: int = 80, *, quote: bool = True) -> str:
    """A value as it stands in a message: one line of at most about `most` characters."""
    try:
        text = repr(value) if quote else str(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, lists too deep
        text = f"{_article(value)} too large to show"
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[:most]}..."


def _read_bytes(path: Path, limit: int) -> bytes:
    """At most `limit` bytes of a regular file; of nothing else, since a pipe or a device may never end."""
    try:
        with open_regular(path) as file:
            raw = file.read(limit + 1)
    except OSError as error:
        raise ValueError(f"not readable ({error.strerror or type(error).__name__}); check the path") from None
    if len(raw) > limit:
        raise ValueError(f"is larger than {limit} bytes, the most that is read; is it the right file?")
    return raw


def _integer(digits: str) -> int:
    """An integer of JSON; Python itself refuses thousands of digits with advice for programmers."""
    return int(digits[:40])  # of so many digits none has 64 bits


def _object(pairs: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
    """A dict of pairs whose keys are different texts."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if not isinstance(name, str):
            raise ValueError(f"the key {short(name)} is no text; put it in quotes")
        if name in found:
            raise ValueError(f"the key {short(name)} is there twice; take one out")
        found[name] = value
    return found


def _built(events: Iterable[Any]) -> Any:
    """The one document of YAML events as plain data; null of none."""
    import yaml

    open_ = [[]]
    for event in events:
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) or getattr(event, "tag", None):
            line = event.start_mark.line + 1
            raise ValueError(f"line {line} has an alias (*), an anchor (&) or a tag (!): write the value itself")
        if isinstance(event, yaml.ScalarEvent):
            open_[-1].append(_word(event.value) if event.implicit[0] else event.value)
        elif isinstance(event, yaml.CollectionStartEvent):
            open_.append([])
            if len(open_) > _DEPTH + 1:
                raise ValueError(f"holds more than {_DEPTH} lists and objects in each other; make it flatter")
        elif isinstance(event, yaml.CollectionEndEvent):
            parts = open_.pop()
            is_list = isinstance(event, yaml.SequenceEndEvent)
            open_[-1].append(parts if is_list else _object(zip(parts[::2], parts[1::2], strict=True)))
    if len(open_[0]) > 1:
        raise ValueError(f"holds {len(open_[0])} YAML documents, allowed is one")
    return open_[0][0] if open_[0] else None


def _word(text: str) -> Any:
    """A word of YAML without quotes."""
    with suppress(ValueError):
        return json.loads(text or "null")
    return text


def _parts(value: Any) -> Iterator[Any]:
    """What a plain value directly holds; raises ValueError if it is none."""
    if isinstance(value, str):
        if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise ValueError("holds half of a character (a lone surrogate); write the whole one")
    elif isinstance(value, bool) or value is None:
        return
    elif isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise ValueError("holds an integer of more than 64 bits; give a smaller one")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"holds {value}; allowed are finite numbers")
    elif isinstance(value, list | tuple):
        yield from value
    elif isinstance(value, dict):
        if strange := [name for name in value if not isinstance(name, str)]:
            raise ValueError(f"the key {short(strange[0])} is no text; put it in quotes")
        yield from value
        yield from value.values()
    else:
        raise ValueError(f"holds {_article(value)}; allowed is what JSON can hold")


def _check_table(file: Any, columns: Mapping[str, type]) -> None:
    """Raise a ValueError unless a parquet file has these columns, of these kinds, and is not too large."""
    from pyarrow import types

    meta = file.metadata
    size = sum(meta.row_group(number).total_byte_size for number in range(meta.num_row_groups))
    if meta.num_rows > _ROWS or size > LARGE:
        raise ValueError(f"more than {_ROWS} rows or {LARGE} bytes")
    is_kind = {int: types.is_integer, float: types.is_floating, str: _is_text}
    for name, kind in columns.items():
        at = file.schema_arrow.get_field_index(name)
        if at < 0 or not is_kind[kind](file.schema_arrow.field(at).type):
            raise ValueError(f"no column {name} of type {kind.__name__}")


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    return types.is_string(kind) or types.is_large_string(kind)


def _article(value: object) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
