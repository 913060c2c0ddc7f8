"""The paper against itself, and texts about the paper against the paper: `audit.toml`.

Each line has what is printed, what follows from other printed numbers, and the arithmetic between
them. No result of ours is needed.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path

PARTS = {"paper": "the paper against itself", "sources": "texts about it against the paper"}


@dataclass(frozen=True)
class AuditLine:
    """One comparison of printed numbers.

    Attributes:
        part: one of `PARTS`.
        place: where it is printed.
        printed: what is printed.
        follows: what follows from other printed numbers.
        arithmetic: how.
        agrees: whether both are the same to the printed digits.
        formulas: number in `follows` or `arithmetic` -> how it is computed from printed ones.
    """

    part: str
    place: str
    printed: str
    follows: str
    arithmetic: str
    agrees: bool
    formulas: dict[str, str]


def audit() -> list[AuditLine]:
    """All lines, the paper's first."""
    text = Path(__file__).with_name("audit.toml").read_text(encoding="utf-8")
    data = tomllib.loads(text)
    return [AuditLine(PARTS[part], **line) for part in PARTS for line in data[part]]
