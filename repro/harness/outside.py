"""A reader of files that others may have written, as pydantic models.

Whatever the bytes, the result is a value or a `ValueError` of one line. Only dicts, lists, texts,
numbers, true, false and null are constructed, so reading runs no code. A file that is larger or
deeper than one of ours can be is refused before it costs memory or time.
"""

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from repro.io.explain import explain
from repro.io.untrusted import SMALL, from_json, read_text

T = TypeVar("T", bound=BaseModel)


def read(path: Path, kind: type[T], limit: int = SMALL) -> T:
    """Read a JSON file of at most `limit` bytes as a pydantic model."""
    try:
        return kind.model_validate(from_json(read_text(path, limit)))
    except ValidationError as error:
        text = explain(error, kind)
    except ValueError as error:
        text = " ".join(str(error).split())
    raise ValueError(f"{path}: {text}")
