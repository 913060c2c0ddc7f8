"""Checks of `launch` before any process starts: can a new process import and unpickle everything?

A stage process starts with an empty memory. It imports the program's main file under another name.
The function and its arguments arrive as a pickle, in which functions and classes are only names.
"""

import inspect
import pickle
import sys
from collections.abc import Callable, Sequence
from multiprocessing import current_process
from multiprocessing.context import get_spawning_popen, set_spawning_popen
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import FunctionType
from typing import Any, cast

from torch import Tensor

from repro.gpipe.errors import shown

GUARD = (
    'launch: called without `if __name__ == "__main__":`; each stage process imports this file '
    "and would call it again, so put the call under that line"
)
_TO_FILE = (
    "put it into a .py file and import it from there, which works in a notebook too "
    "(docs/launching.md)"
)


def importing_main() -> bool:
    """Whether this is a new process that still imports the main file, which then has no guard."""
    return getattr(current_process(), "_inheriting", False)


def check_call(fn: object, args: Sequence[object], stages: object, threads: object) -> None:
    """Raise a one-line ValueError unless `fn(*args)` can be called with these options."""
    for field, number in (("stages", stages), ("threads", threads)):
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise ValueError(f"{field}={shown(number)}: must be a whole number, at least 1")
    if not callable(fn):
        raise ValueError(
            f"fn={shown(fn)}: must be a function; write launch(train, ...), not launch(train(...), "
            "...)"
        )
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # a builtin without a signature
        return
    try:
        signature.bind(*args)
    except TypeError as error:
        raise ValueError(
            f"fn={name(fn)}: cannot be called with these {len(args)} arguments: {error}"
        ) from None


def check_spawn(fn: Callable[..., Any], args: Sequence[object]) -> None:
    """Check that a new process can import the main file, the function and the arguments.

    Raises:
        ValueError: one line, if it cannot.
    """
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    if getattr(main, "__spec__", None) is None and file is not None and not Path(file).is_file():
        raise ValueError(
            f"launch: this program is {file}, which is no file that stage processes could import; "
            "write it into a .py file and run that"
        )
    _refuse_unpicklable(f"fn={name(fn)}", fn)
    for number, value in enumerate(args):
        _refuse_unpicklable(f"args[{number}]", value)


def pickled(what: str, value: object) -> bytes:
    """The value as a pickle.

    Raises:
        ValueError: one line that begins with `what`, if the value cannot be pickled.
    """
    try:
        return pickle.dumps(value)
    except Exception as error:  # whatever a __reduce__ raises
        raise ValueError(
            f"{what} {_reason(error)}; return tensors, numbers, strings, or lists of them"
        ) from None


def _refuse_unpicklable(what: str, value: object) -> None:
    """Raise a ValueError that begins with `what` unless a new process can be given the value."""
    before = get_spawning_popen()
    set_spawning_popen(cast("Any", _NoProcess))
    try:
        _Looker(cast("Any", _Nowhere())).dump(value)
    except _RefusedError as reason:
        raise ValueError(f"{what}: {reason}") from None
    except Exception as error:
        raise ValueError(
            f"{what}: {_reason(error)}; pass what it is made from, and make it in the function"
        ) from None
    finally:
        set_spawning_popen(before)


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"cannot be pickled ({type(error).__name__}: {text[:200]})"


class _RefusedError(Exception):
    """The reason why a value cannot be sent to a new process."""


class _Looker(ForkingPickler):
    """A pickler that writes nothing, and refuses objects that a new process cannot be given."""

    def reducer_override(self, obj: object) -> Any:
        if isinstance(obj, Tensor):
            if obj.requires_grad and not obj.is_leaf:
                raise _RefusedError(
                    "holds a tensor with a graph, which stays in its process; detach() it"
                )
            return str, ()  # pickle an empty text in its place: its memory is not to be moved
        if isinstance(obj, FunctionType | type) and (reason := _cannot_import(obj)):
            raise _RefusedError(reason)
        return NotImplemented


class _Nowhere:
    """A file that discards its data."""

    def write(self, data: "bytes | memoryview | pickle.PickleBuffer") -> int:
        return len(memoryview(data))


class _NoProcess:
    """In place of a process that is being started: queues can be pickled only for one."""

    DupFd = staticmethod(int)
    duplicate_for_child = staticmethod(int)


def _cannot_import(thing: FunctionType | type) -> str:
    """Why a fresh process could not import a function or a class; empty where it can."""
    called = thing.__qualname__
    if called == "<lambda>" or called.endswith(".<lambda>"):
        return (
            "is or holds a lambda, which a stage process cannot import; write a function with "
            f"def, and {_TO_FILE}"
        )
    if "<locals>" in called:
        return (
            f"is or holds {called}, defined inside a function, where a stage process cannot import "
            "it; move it to the top level of its file"
        )
    if thing.__module__ != "__main__":
        return ""
    main = sys.modules["__main__"]
    has_spec = getattr(main, "__spec__", None) is not None
    has_file = getattr(main, "__file__", None) is not None
    is_typed = isinstance(thing, FunctionType) and thing.__code__.co_filename.startswith("<")
    if (has_spec or has_file) and not is_typed:
        return ""
    return (
        f"is or holds {called}, defined in an interactive session, a notebook or `python -c`, "
        f"which stage processes cannot import; {_TO_FILE}"
    )


def name(fn: object) -> str:
    """Name of a function in a message."""
    return getattr(fn, "__qualname__", None) or shown(fn)
