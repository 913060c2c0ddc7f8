"""Checks of `launch` before any process starts: can a new process import what it is to run?

A stage process starts with an empty memory. It imports the program's main file under another name.
The function and its arguments arrive as a pickle, in which functions and classes are only names.
"""

import pickle
import sys
from collections.abc import Callable
from multiprocessing import current_process
from pathlib import Path
from types import FunctionType
from typing import Any

from repro.io.untrusted import short

GUARD = (
    'launch: called without `if __name__ == "__main__":`; each stage process imports this file '
    "and would call it again, so put the call under that line"
)


def importing_main() -> bool:
    """Whether this is a new process that still imports the main file, which then has no guard."""
    return getattr(current_process(), "_inheriting", False)


def check_call(fn: object, stages: object, threads: object) -> None:
    """Raise a one-line ValueError unless `fn` can be called with these options."""
    for field, number in (("stages", stages), ("threads", threads)):
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise ValueError(f"{field}={short(number)}: must be a whole number, at least 1")
    if not callable(fn):
        raise ValueError(
            f"fn={short(fn)}: must be a function; write launch(train, ...), not launch(train(...), "
            "...)"
        )


def check_importable(fn: Callable[..., Any]) -> None:
    """Raise a one-line ValueError unless a new process can import the main file, and `fn` from it.

    What else cannot be sent, the pickler says when the first process is to start.
    """
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    if getattr(main, "__spec__", None) is None and file is not None and not Path(file).is_file():
        raise ValueError(
            f"launch: this program is {file}, which is no file that stage processes could import; "
            "write it into a .py file and run that"
        )
    is_typed = isinstance(fn, FunctionType) and fn.__code__.co_filename.startswith("<")
    if getattr(fn, "__module__", "") == "__main__" and (file is None or is_typed):
        raise ValueError(
            f"fn={name(fn)}: defined in an interactive session, a notebook or `python -c`, which "
            "stage processes cannot import; put it into a .py file and import it from there, which "
            "works in a notebook too (docs/launching.md)"
        )


def pickled(what: str, value: object) -> bytes:
    """The value as a pickle.

    Raises:
        ValueError: one line that begins with `what`, if the value cannot be pickled.
    """
    try:
        return pickle.dumps(value)
    except Exception as error:  # whatever a __reduce__ raises
        raise ValueError(
            f"{what} {unpicklable(error)}; return tensors, numbers, strings, or lists of them"
        ) from None


def unpicklable(error: Exception) -> str:
    """What the pickler says of a value, on one line."""
    text = " ".join(str(error).split())
    return f"cannot be pickled ({type(error).__name__}: {text[:200]})"


def name(fn: object) -> str:
    """Name of a function in a message."""
    return getattr(fn, "__qualname__", None) or short(fn)
