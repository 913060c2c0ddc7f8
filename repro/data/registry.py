"""Every data set by name: its place on the Hugging Face Hub, columns, splits, licence, size."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from repro.io.untrusted import did_you_mean


@dataclass(frozen=True)
class DataSet:
    """Where a data set is, and what it contains."""

    name: str
    kind: Literal["images", "pairs"]
    title: str
    licence: str
    examples: Sequence[int]  # of training and test; 0 if that depends on the language
    hub: str = ""  # id on the Hugging Face Hub; empty if no network is needed
    config: str | None = None  # the Hub's name of a part; the name of a toy language
    revision: str | None = None
    train: str = "train"  # split to train on; "a+b" joins two
    test: str = "test"
    columns: Sequence[str] = ("image", "label")  # of images
    classes: int = 0  # of images
    gated: bool = False  # whether the Hub gives it only to users who have accepted its terms


_ROWS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
DATA = {name: DataSet(name, **row) for name, row in _ROWS.items()}


def find(name: str) -> DataSet:
    """The data set of a name of `DATA`, or of one language, such as opus100:de-en or toy:alfa.

    A one-line ValueError if there is none.
    """
    base, _, detail = name.partition(":")
    if base in ("opus100", "toy") and detail:
        # The Hub has the two languages of a pair in the order of the alphabet.
        config = "-".join(sorted(detail.split("-")))
        return replace(DATA[base], name=name, config=config)
    if name not in DATA:
        raise ValueError(
            f"data={name!r}: no data set has this name; allowed are {', '.join(DATA)}"
            f"{did_you_mean(base, DATA)}"
        )
    return DATA[name]
