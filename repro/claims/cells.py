"""What `claims.toml` holds, the ids of its claims, and the tolerances that experiments show."""

import tomllib
from pathlib import Path
from typing import Any

DATA: dict[str, Any] = tomllib.loads(
    Path(__file__).with_name("claims.toml").read_text(encoding="utf-8")
)
CELL: float = DATA["allowed"]["cell"]["share"]  # of a ratio of throughput, of bytes
SHARE: float = DATA["allowed"]["part"]["near"]  # points of a part of the step
ROUNDING: float = DATA["allowed"]["rounding"]["near"]  # points
NEGLIGIBLE: float = DATA["allowed"]["negligible"]["at_most"]  # percent of K x step
KS = (2, 4, 8)  # of the paper's tables
BASE_CELL = "the cell that the others are divided by"


def cell_id(*parts: object) -> str:
    """`table2/transformer/K=8/M=32`."""
    return "/".join(map(str, parts))


def throughput_id(table: str, model: str, K: int, M: int) -> str:
    """The id of a cell of Table 2 or 3."""
    return cell_id(table, model, f"K={K}", f"M={M}")
