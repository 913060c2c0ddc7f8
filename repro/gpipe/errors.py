"""One helpful line for a wrong argument, and an error for numbers that went wrong."""

from collections.abc import Iterable
from difflib import get_close_matches


class NonFiniteError(FloatingPointError):
    """A training step gave inf or nan: which step, layer, stage and micro-batch. It was refused and changed nothing."""


def one_of(field: str, value: object, allowed: Iterable[str]) -> None:
    """Raise a ValueError that names the field, the value, what is allowed and the nearest match."""
    names = list(allowed)
    if value in names:
        return
    near = get_close_matches(str(value), names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"{field}={value!r}: choose one of {', '.join(names)}{hint}")
