"""Sizes in bytes as people type them, in decimal (GB) or binary (GiB) units."""

import re

_FACTORS = {"B": 1} | {
    f"{prefix}{infix}B": (1024 if infix else 1000) ** power
    for power, prefix in enumerate("kMGT", 1)
    for infix in ("", "i")
}
_UNITS = {name.lower(): factor for name, factor in _FACTORS.items()}


def parse_bytes(field: str, text: str) -> int:
    """Parse a size: `"8GB"` -> 8000000000, `"8 GiB"` -> 8589934592."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-z]*)\s*", text)
    number, unit = match.groups() if match else ("8", "")
    in_bits = unit.endswith("b") and unit != unit.lower()
    size = float(number) * _UNITS.get(unit.lower(), 0)
    if in_bits or not 1 <= size < 2**60:
        raise ValueError(
            f"{field} = {text!r}: allowed is a number of bytes below an exbibyte with one of the "
            f"units {', '.join(_FACTORS)}; try {number}GB"
        )
    return int(size)
