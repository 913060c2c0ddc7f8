"""A reader of files that others may have written, as pydantic models.

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
    """Read a JSON file of at most `limit` bytes as a pydantic model."""
    try:
        return kind.model_validate(from_json(read_text(path, limit)))
    except ValidationError as error:
        text = explain(error, kind)
    except ValueError as error:
        text = " ".join(str(error).split())
    raise ValueError(f"{path}: {text}")


def consent(source: str, model: str, *, trusted: bool) -> str:
    """Check a model's name that comes from a file; call it before anything is built from the name.

    Such a name can be any function of any Python module, with any arguments: `import:os:system`
    runs a program. A name that the user typed, or that is in an experiment's .py file, needs no
    check. `source` is where the name is from, for messages. Returns a line about the code that will
    run; empty if the name is no code.

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
