"""Whether two computations of the same numbers agree, in one word; needs no torch."""

from collections.abc import Iterable
from typing import Literal, get_args

Verdict = Literal["same bits", "rounding", "different"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)  # from best to worst


def verdict(*, same_bits: bool, distance: float, limit: float) -> Verdict:
    """A distance up to the limit is rounding; NaN is different."""
    if same_bits:
        return "same bits"
    return "rounding" if distance <= limit else "different"


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst verdict of several computations."""
    return max(verdicts, key=VERDICTS.index)
