"""Errors that have a meaning for more than one rank, and one helpful line for a wrong argument."""

import dis
from collections.abc import Callable, Iterable
from functools import wraps
from numbers import Real
from typing import Any, ParamSpec, TypeGuard, TypeVar

from repro.io.untrusted import did_you_mean, short

P = ParamSpec("P")
T = TypeVar("T")


class EveryRankError(Exception):
    """Raised by all ranks alike: nobody waits for anybody, and the group can go on."""


class LostNeighbourError(ConnectionError):
    """The process at the other end of a connection is gone; `rank` is its rank in the world."""

    def __init__(self, rank: int, reason: object) -> None:
        cause = short(reason, 200, quote=False)
        super().__init__(f"it closed its connection: it ended, or was killed ({cause})")
        self.rank = rank


class RefusedError(ValueError, EveryRankError):
    """All ranks refuse a step, such as one with wrong inputs."""


class NonFiniteError(FloatingPointError, EveryRankError):
    """A training step gave inf or nan; it was refused and changed nothing."""


def is_refusal(error: BaseException) -> bool:
    """Whether an error is this package's one line about a mistake of the user, without a trace.

    Such a line is raised by a `raise` of ours. A failed `zip(strict=True)` of ours is our mistake.
    """
    if not isinstance(error, ValueError | OSError) or error.__cause__ or not error.__traceback__:
        return False
    last = error.__traceback__
    while last.tb_next:
        last = last.tb_next
    raised = last.tb_frame.f_code.co_code[last.tb_lasti] == dis.opmap["RAISE_VARARGS"]
    return raised and last.tb_frame.f_globals.get("__name__", "").startswith("repro.")


def in_call(call: Callable[P, T]) -> Callable[P, T]:
    """A call of a Pipeline.

    What it refuses is the caller's mistake, so the traceback ends here, one line below the caller.
    """

    @wraps(call)
    def called(*arguments: P.args, **named: P.kwargs) -> T:
        try:
            return call(*arguments, **named)
        except ValueError as error:
            if not is_refusal(error):
                raise
            refusal = error
        raise refusal.with_traceback(None)

    return called


def within(value: object, least: float, most: float) -> TypeGuard[Any]:
    """Whether a value is a number from `least` to `most`, and neither a bool nor NaN."""
    number: Any = value
    return isinstance(value, Real) and not isinstance(value, bool) and bool(least <= number <= most)


def check_counts(**counts: object) -> None:
    """Raise a ValueError unless each is a whole number, at least 1."""
    for field, value in counts.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{field}={short(value)}: must be a whole number, at least 1")


def one_of(field: str, value: object, allowed: Iterable[str]) -> None:
    """Raise a ValueError that names the field, the value, what is allowed and the nearest match."""
    names = list(allowed)
    if value in names:
        return
    hint = did_you_mean(str(value), names)
    raise ValueError(f"{field}={value!r}: choose one of {', '.join(names)}{hint}")
