"""How numbers look to a reader: at most three significant digits, and `1.39 (1.35 to 1.42)`."""

from math import isnan, nan

EMPTY, TIMES = "-", "\N{MULTIPLICATION SIGN}"
_LETTERS = ((1e9, "B"), (1e6, "M"))


def digits(value: float) -> str:
    """`5.61`, `0.0231`, `83.9B`; a whole number as it is."""
    if isinstance(value, int) and abs(value) < 1e6:
        return str(value)
    for size, letter in _LETTERS:
        if abs(value) >= size:
            return digits(value / size) + letter
    if value == 0:
        return "0"
    if abs(value) >= 999.5:
        return f"{value:.0f}"
    return f"{value:#.3g}".removesuffix(".")


def percent(share: float) -> str:
    return f"{digits(100.0 * share)} %"


def printed(value: float) -> str:
    """A number of the paper, with all digits that it prints."""
    for size, letter in _LETTERS:
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def ranged(value: float, low: float = nan, high: float = nan, unit: str = "") -> str:
    """A number with its unit and the ends of its interval or range, if it has some."""
    text = amount(digits(value), unit)
    return text if isnan(low) or isnan(high) else f"{text} ({digits(low)} to {digits(high)})"


def amount(number: str, unit: str) -> str:
    return f"{number}{'' if unit in ('', TIMES) else ' '}{unit}"
