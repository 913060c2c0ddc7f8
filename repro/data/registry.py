"""Every data set by name: its place on the Hugging Face Hub, columns, splits, licence and size."""

import difflib
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

Kind = Literal["images", "pairs"]
LOCAL = "folder"
"""Prefix of data on this machine: folder:PATH."""


@dataclass(frozen=True)
class DataSet:
    """Where a data set is, and what is in it.

    Attributes:
        examples: training and test examples; 0 where that depends on the language.
        hub: id on the Hugging Face Hub; empty where no network is needed.
        train: splits that are put together for training.
        columns: of images: image and label. Of pairs: "translation" and the language of the source.
        classes: of an image set.
        gigabytes: 10^9 bytes to download; None where that was not looked up, or nothing is
            downloaded.
        gated: the Hub gives it only to those who have accepted its terms.
        path: of local data the folder; of the toy languages the one that is meant.
    """

    name: str
    kind: Kind
    title: str
    licence: str
    examples: tuple[int, int]
    hub: str = ""
    config: str | None = None
    revision: str | None = None
    train: tuple[str, ...] = ("train",)
    test: str = "test"
    columns: tuple[str, str] = ("image", "label")
    classes: int = 0
    gigabytes: float | None = None
    gated: bool = False
    path: str = ""

    @property
    def page(self) -> str:
        return f"https://huggingface.co/datasets/{self.hub}"

    @property
    def local(self) -> bool:
        return self.name.partition(":")[0] == LOCAL


def _read() -> dict[str, DataSet]:
    rows = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    entries = {}
    for name, row in rows.items():
        values: Any = {
            field: tuple(value) if isinstance(value, list) else value
            for field, value in row.items()
        }
        entries[name] = DataSet(name, **values)
    return entries


DATA = _read()


def find(name: str) -> DataSet:
    """The data set of a name.

    Args:
        name: a name of `DATA`; opus100:de-en and toy:alfa for one language; folder:PATH for what
            `datasets.load_dataset` opens there: a folder of images for each class, parquet, csv.

    Raises:
        ValueError: the name is unknown. One line.
    """
    base, _, detail = name.partition(":")
    if base == LOCAL:
        if not detail:
            raise ValueError(f"data={name!r}: the path is missing; try {base}:some/folder")
        # The title is recorded with results, so it has no path of this machine.
        title = f"{base}:{Path(detail).name}"
        return DataSet(name, "images", title, "not known", (0, 0), path=detail)
    entry = DATA.get(base)
    if entry is None:
        close = difflib.get_close_matches(base, DATA, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(
            f"data={name!r}: no data set has this name; allowed are {', '.join(DATA)}, and "
            f"{LOCAL}:PATH{hint}"
        )
    if not detail:
        return entry
    if base == "opus100":
        source = detail.removesuffix("-en").removeprefix("en-")
        config = "-".join(sorted((source, "en")))
        return replace(entry, name=name, config=config, columns=("translation", source))
    if base == "toy":
        return replace(entry, name=name, path=detail)
    raise ValueError(f"data={name!r}: {base} has no parts; try {base}")


def offline(kind: Kind) -> str:
    """What needs no network, for error messages."""
    default = "--data digits" if kind == "images" else "--data toy"
    return f"without a network try {default}"
