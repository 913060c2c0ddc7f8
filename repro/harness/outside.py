"""Files from outside, read as plain data: whatever their bytes, a value or one `ValueError` that says what is wrong.

JSON as in `repro.io.untrusted`, YAML without its tags and aliases, and tables in parquet. Nothing
is constructed but dicts, lists, texts, numbers, true, false and null, so nothing that is read here
can run code. What is larger, deeper or otherwise more than a file of ours can be is refused before
it costs memory or time.
"""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from repro.io.untrusted import (
    DEPTH,
    LARGE,
    SMALL,
    check_plain,
    from_json,
    read_bytes,
    read_text,
    short,
    unique,
    with_article,
)

_YAML = 2**16  # bytes of YAML, which is written by hand and slow to read
_ROWS = 2**20  # of a table
_WORD = 64  # characters of a text in a table
# Models that our own code and timm's registry build; any other name may load or run something else.
_BUILT_IN = re.compile(r"(timm:)?[A-Za-z0-9_.-]+")

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
            raise ValueError(
                f"holds {with_article(value)}, allowed is an object with the fields of "
                f"{kind.__name__}"
            )
        return kind(**value)
    except ValidationError as error:
        raise ValueError(f"{path}: {in_words(error)}; correct it") from None
    except ValueError as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from None


def consent(source: str, model: str, *, trusted: bool) -> str:
    """The one gate for a model's name that comes from a file: call it before anything is built from the name.

    A function of any module that Python finds can be named, with any arguments: `import:os:system`
    is a program. A name that the user typed, or that stands in an experiment's file, needs no gate.

    Args:
        source: of the name, for messages, such as "--spec theirs.json".
        model: the name.
        trusted: whether the user said that this code may run.

    Returns:
        What to say about the code that will run, one line; empty where the name is no code.

    Raises:
        ValueError: one line, where the name is code and is not trusted, or is no model's name.
    """
    if _BUILT_IN.fullmatch(model):
        return ""
    prefix, _, named = model.partition(":")
    if prefix != "import":
        raise ValueError(
            f"{source} names the model {short(model)}: allowed are names of `repro.models`, "
            "timm:NAME of timm's own list, and import:package.module:function; correct it"
        )
    module, _, function = named.partition(":")
    what = f"{source} names code: it imports the Python module {module} and calls {function}"
    if not trusted:
        raise ValueError(f"{what} with the model_args; look at both, then add --trust to run it")
    return f"{what}, as --trust allows"


def from_yaml(text: str) -> Any:
    """The value of a YAML text, limited to what JSON can express.

    A word without quotes means what it means in JSON (2, 1e-3, true, null); any other word is a
    text, also `no`.

    Raises:
        ValueError: one line.
    """
    try:
        loader = _PlainLoader(text)
        value = loader.get_data() if loader.check_data() else None
        if loader.check_data():
            raise ValueError("holds more than one YAML document, allowed is one")
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ValueError(
            f"not readable as YAML (line {line}: {short(error.problem, quote=False)}); correct it"
        ) from None
    # Also of a number or a character that does not exist.
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise ValueError(f"not readable as YAML ({short(error, 160, quote=False)})") from None
    check_plain(value)
    return value


class _PlainLoader(yaml.SafeLoader):
    """YAML without aliases, anchors and tags, whose words without quotes are those of JSON."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}  # else `no` would be false

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """The next value, unless it is nested too deep or more than plain data."""
        event = self.peek_event()
        if event.anchor or getattr(event, "tag", None):  # an alias has an anchor, but no tag
            raise ValueError(
                f"line {event.start_mark.line + 1} has an alias (*), an anchor (&) or a tag (!): "
                "write the value itself"
            )
        self._depth += 1
        if self._depth > DEPTH + 1:
            raise ValueError(
                f"holds more than {DEPTH} lists and objects in each other; make it flatter"
            )
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[str, Any]:
        """An object, whose keys must be different texts."""
        return unique(
            (self.construct_object(key, deep=True), self.construct_object(value, deep=True))
            for key, value in node.value
        )

    def construct_word(self, node: yaml.ScalarNode) -> Any:
        """A text in quotes as it is, a word without quotes as JSON reads it."""
        if node.style is None:
            with suppress(ValueError):
                return json.loads(node.value or "null")
        return node.value


_PlainLoader.add_constructor("tag:yaml.org,2002:str", _PlainLoader.construct_word)


def read_table(path: Path, columns: Mapping[str, type]) -> list[dict[str, Any]]:
    """The rows of a parquet file, of which these columns are read; raises ValueError, which does not name the file.

    Args:
        path: of the file.
        columns: name -> int, float or str; a text is a short word.
    """
    from pyarrow import BufferReader, parquet

    raw = read_bytes(path, LARGE)
    try:
        with parquet.ParquetFile(BufferReader(raw)) as file:
            if not file.metadata.num_rows:
                return []
            _check_table(file, columns)
        texts = [name for name, kind in columns.items() if kind is str]
        # Each text once, however often it stands there: so it cannot unfold before it has been
        # looked at.
        with parquet.ParquetFile(BufferReader(raw), read_dictionary=texts) as file:
            table = file.read(columns=list(columns), use_threads=False)
        for name in texts:
            words = table.column(name).combine_chunks().dictionary
            if any(len(word.as_py() or "") > _WORD for word in words):
                raise ValueError(f"{name} holds a text of more than {_WORD} characters")
        return table.to_pylist()
    except Exception as error:  # a damaged file fails in many ways
        raise ValueError(
            f"no table that can be read ({' '.join(str(error).split())[:200]})"
        ) from None


def in_words(error: ValidationError) -> str:
    """The first mistake of a pydantic error: where, and what is wrong."""
    first = error.errors(include_url=False)[0]
    return (
        f"{short('.'.join(str(part) for part in first['loc']), quote=False)}: "
        f"{first['msg'].lower()}"
    )


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
