"""The paper against itself, and texts about the paper against the paper: `audit.toml`.

Each line has what is printed, what follows from other printed numbers, and the arithmetic between
them. No result of ours is needed.
"""

import tomllib
from pathlib import Path
from typing import Any

PARTS = {"paper": "the paper against itself", "sources": "texts about it against the paper"}


def audit() -> list[dict[str, Any]]:
    """Its lines.

    `formulas`: number in `follows` or `arithmetic` -> how it is computed. `meant`: id of a claim
    whose number is a misprint -> the number that should stand there.
    """
    text = Path(__file__).with_name("audit.toml").read_text(encoding="utf-8")
    data = tomllib.loads(text)
    return [{"part": name, **line} for part, name in PARTS.items() for line in data[part]]
