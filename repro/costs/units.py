"""Sizes in bytes as people write them, in decimal (GB) or binary (GiB) units."""

import re

_FACTORS = {"B": 1} | {
    f"{prefix}{infix}B": (1024 if infix else 1000) ** power
    for power, prefix in enumerate("kMGT", 1)
    for infix in ("", "i")
}
_UNITS = {name.lower(): (name, factor) for name, factor in _FACTORS.items()}


def parse_bytes(field: str, text: str) -> tuple[int, str]:
    """Parse a size: `"8GB"` -> (8000000000, "GB"), `"8 GiB"` -> (8589934592, "GiB")."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-z]+)\s*", text)
    number, unit = match.groups() if match else ("8", "")
    name, factor = _UNITS.get(unit.lower(), ("", 0))
    in_bits = unit.endswith("b") and unit != unit.lower()
    size = float(number) * factor
    if in_bits or not 1 <= size < 2**60:
        raise ValueError(
            f"{field} = {text!r}: allowed is a number of bytes below an exbibyte with one of the "
            f"units {', '.join(_FACTORS)}; try {number}GB"
        )
    return int(size), name


def readable(size: float, unit: str) -> str:
    """A size in this unit, or in a smaller one of its kind where too few digits would be shown."""
    same_kind = [name for name in _FACTORS if ("i" in name) == ("i" in unit) or name == "B"]
    while size and size < 0.1 * _FACTORS[unit] and unit != "B":
        unit = same_kind[same_kind.index(unit) - 1]
    return _in_unit(size, unit)


def different(size: int, limit: int, unit: str) -> tuple[str, str]:
    """Two different sizes in one unit, with as many digits as show that they differ."""
    return next(
        texts
        for digits in range(2, 20)
        if len(set(texts := (_in_unit(size, unit, digits), _in_unit(limit, unit, digits)))) == 2
    )


def _in_unit(size: float, unit: str, digits: int = 2) -> str:
    return f"{size / _FACTORS[unit]:.{digits}f} {unit}" if unit != "B" else f"{size:.0f} B"
