"""Readers of files that others may have written: as pydantic models.

Whatever the bytes, the result is a value or a `ValueError` of one line. Only dicts, lists, texts,
numbers, true, false and null are constructed, so reading runs no code. A file that is larger or
deeper than one of ours can be is refused before it costs memory or time.
"""

import re
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from repro.io.explain import explain
from repro.io.untrusted import SMALL, from_json, read_text, short

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
            f"holds {short(value)}: allowed is an object with the fields of {kind.__name__}"
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
