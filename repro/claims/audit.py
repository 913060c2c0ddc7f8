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
    part: str
    place: str
    printed: str
    follows: str
    arithmetic: str
    agrees: bool
    formulas: dict[str, str]  # number in `follows` or `arithmetic` -> how it is computed


def audit() -> list[AuditLine]:
    text = Path(__file__).with_name("audit.toml").read_text(encoding="utf-8")
    data = tomllib.loads(text)
    return [AuditLine(PARTS[part], **line) for part in PARTS for line in data[part]]
