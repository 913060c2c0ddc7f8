"""Numbers, sizes, seconds and intervals as text, the same everywhere in the terminal."""

import math


def number(value: float) -> str:
    """Three significant digits, or a whole number from 1000 on: `9,990`, `178`, `0.0123`."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) >= 999.5:
        return f"{value:,.0f}"
    rounded = float(f"{value:.3g}")
    return f"{rounded:.{max(0, 2 - math.floor(math.log10(abs(rounded))))}f}"


def seconds(value: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if value * factor >= 0.9995:
            return f"{number(value * factor)} {unit}"
    return f"{number(value * 1e6)} us"


def duration(value: float) -> str:
    if value < 90:
        return f"{max(1, round(value))} s"
    return f"{value / 60:.0f} min" if value < 5400 else f"{value / 3600:.1f} h"


def size(nbytes: float) -> str:
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= factor:
            return f"{number(nbytes / factor)} {unit}"
    return f"{number(nbytes)} B"


def above(nbytes: float, limit: float) -> str:
    """`20.1 GiB of 16.0 GiB`, with bytes where both would be the same text."""
    texts = size(nbytes), size(limit)
    return " of ".join(texts if len({*texts}) == 2 else (f"{nbytes:,} B", f"{limit:,} B"))


def ratio(value: float, low: float, high: float) -> str:
    """`1.42x [1.32, 1.65]`; no interval if it is unknown, ~ if it spans 1."""
    interval = "" if math.isnan(low) else f" [{low:.2f}, {high:.2f}]"
    return f"{value:.2f}x{interval}{' ~' if low <= 1 <= high else ''}"
