"""Every data set by name: its place on the Hugging Face Hub, columns, splits, licence and size."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from repro.io.untrusted import did_you_mean


@dataclass(frozen=True)
class DataSet:
    """Where a data set is, and what is in it."""

    name: str
    kind: Literal["images", "pairs"]
    title: str
    licence: str
    examples: Sequence[int]  # to train on and to test; 0 where that depends on the language
    hub: str = ""  # id on the Hugging Face Hub; empty where no network is needed
    config: str | None = None  # the Hub's name of a part; of toy languages the one that is meant
    revision: str | None = None
    train: str = "train"  # split to train on; "a+b" puts two together
    test: str = "test"
    columns: Sequence[str] = ("image", "label")  # of images
    classes: int = 0  # of images; 0 where that is not known before they are read
    gated: bool = False  # the Hub gives it only to those who have accepted its terms
    folder: str = ""  # of data on this machine

    @property
    def page(self) -> str:
        return f"https://huggingface.co/datasets/{self.hub}"


_ROWS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
DATA = {name: DataSet(name, **row) for name, row in _ROWS.items()}


def find(name: str) -> DataSet:
    """The data set of a name; a one-line ValueError if there is none.

    That is a name of `DATA`; opus100:de-en and toy:alfa for one language; folder:PATH for what
    `datasets.load_dataset` opens there: a folder of images for each class, parquet, csv.
    """
    base, _, detail = name.partition(":")
    if base == "folder" and detail:
        # The title is recorded with results, so it has no path of this machine.
        title = f"folder:{Path(detail).name}"
        return DataSet(name, "images", title, "not known", (0, 0), folder=detail)
    if base in ("opus100", "toy") and detail:
        # The Hub has the two languages of a pair in the order of the alphabet.
        config = "-".join(sorted(detail.split("-")))
        return replace(DATA[base], name=name, config=config)
    if name not in DATA:
        raise ValueError(
            f"data={name!r}: no data set has this name; allowed are {', '.join(DATA)}, and "
            f"folder:PATH{did_you_mean(base, DATA)}"
        )
    return DATA[name]
