"""How numbers look to a reader, on the page and in the terminal: `1.39 (1.35 to 1.42)`.

What is measured or computed has at most three significant digits. Counts and numbers of the paper
have all of theirs.
"""

from math import isfinite, isnan, nan

EMPTY, TIMES = "-", "\N{MULTIPLICATION SIGN}"
_LETTERS = ((1e9, "B"), (1e6, "M"))


def digits(value: float) -> str:
    """`5.61`, `0.0231`, `1,340`, `83.9B`; a whole number below a million with all digits."""
    if isinstance(value, int) and abs(value) < 1e6:
        return f"{value:,}"
    if value == 0:
        return "0"
    if not isfinite(value):
        return str(value)
    for size, letter in _LETTERS:
        if abs(value) >= size:
            return digits(value / size) + letter
    rounded = float(f"{value:.3g}")
    if abs(rounded) >= 1000:
        return f"{rounded:,.0f}"
    return f"{rounded:#.3g}".removesuffix(".")


def percent(share: float) -> str:
    """`12.3 %`; what is less than a thousandth of a percent is 0."""
    return f"{digits(100.0 * share if abs(share) >= 1e-5 else 0)} %"


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


def ratio(value: float, low: float, high: float) -> str:
    """A ratio with its interval, and ~ behind it if the interval holds 1."""
    return ranged(value, low, high, TIMES) + " ~" * (low <= 1 <= high)


def seconds(value: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if value * factor >= 0.9995:
            return f"{digits(value * factor)} {unit}"
    return f"{digits(value * 1e6)} us"


def duration(value: float) -> str:
    if value < 90:
        return f"{max(1, round(value))} s"
    return f"{value / 60:.0f} min" if value < 5400 else f"{value / 3600:.1f} h"


def size(nbytes: float) -> str:
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= factor:
            return f"{digits(nbytes / factor)} {unit}"
    return f"{digits(nbytes)} B"


def above(nbytes: float, limit: float) -> str:
    """`20.1 GiB of 16.0 GiB`, with bytes where both would be the same text."""
    texts = size(nbytes), size(limit)
    return " of ".join(texts if len({*texts}) == 2 else (f"{nbytes:,} B", f"{limit:,} B"))
