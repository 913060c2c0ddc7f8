"""Every data set by name: its place on the Hugging Face Hub, columns, splits, licence and size.

Where no revision is pinned, the newest one is read. Sizes are those that the authors of a data set
state; a copy on the Hub may lack images. The paper's Table 4 prints 3,369 test images for the pets.

Gigabytes of ImageNet (its training images) and Food-101 are those on the Hub's data cards; of WMT14
those that `datasets` recorded for its archives; of the others those of the authors' archives in the
checksums of TensorFlow Datasets. A copy on the Hub may be compressed otherwise.
"""

import difflib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

Kind = Literal["images", "pairs"]
LOCAL = "folder"
"""Prefix of data on this machine: folder:PATH."""


@dataclass(frozen=True)
class DataSet:
    """Where a data set is, and what is in it."""

    name: str
    kind: Kind
    title: str
    licence: str
    examples: tuple[int, int]
    """Training and test examples; 0 where that depends on the language."""
    hub: str = ""
    """Id on the Hugging Face Hub; empty where no network is needed."""
    config: str | None = None
    revision: str | None = None
    train: tuple[str, ...] = ("train",)
    """Splits that are put together for training."""
    test: str = "test"
    columns: tuple[str, str] = ("image", "label")
    """Of images: image and label. Of pairs: "translation" and the language of the source."""
    classes: int = 0
    """Classes of an image set."""
    gigabytes: float | None = None
    """10^9 bytes to download; None where that was not looked up, or nothing is downloaded."""
    gated: bool = False
    """The Hub gives it only to those who have accepted its terms."""
    path: str = ""
    """Of local data: the folder. Of the toy languages: the one that is meant."""

    @property
    def page(self) -> str:
        return f"https://huggingface.co/datasets/{self.hub}"

    @property
    def local(self) -> bool:
        return self.name.partition(":")[0] == LOCAL


DATA = {
    entry.name: entry
    for entry in (
        DataSet(
            "digits",
            "images",
            "scikit-learn digits",
            "CC BY 4.0",
            (1_442, 355),
            classes=10,
        ),
        DataSet(
            "cifar10",
            "images",
            "CIFAR-10",
            "not stated",
            (50_000, 10_000),
            hub="uoft-cs/cifar10",
            config="plain_text",
            revision="0b2714987fa478483af9968de7c934580d0bb9a2",
            columns=("img", "label"),
            classes=10,
            gigabytes=0.17,
        ),
        DataSet(
            "cifar100",
            "images",
            "CIFAR-100",
            "not stated",
            (50_000, 10_000),
            hub="uoft-cs/cifar100",
            config="cifar100",
            revision="aadb3af77e9048adbea6b47c21a81e47dd092ae5",
            columns=("img", "fine_label"),
            classes=100,
            gigabytes=0.17,
        ),
        DataSet(
            "imagenet",
            "images",
            "ImageNet-1k",
            "ImageNet terms of access (gated)",
            (1_281_167, 50_000),
            hub="ILSVRC/imagenet-1k",
            test="validation",
            classes=1000,
            gigabytes=147.0,
            gated=True,
        ),
        DataSet(
            "cars",
            "images",
            "Stanford Cars",
            "not stated",
            (8_144, 8_041),
            hub="tanganke/stanford_cars",
            classes=196,
            gigabytes=1.96,
        ),
        DataSet(
            "pets",
            "images",
            "Oxford-IIIT Pets",
            "CC BY-SA 4.0",
            (3_680, 3_669),
            hub="timm/oxford-iiit-pet",
            classes=37,
            gigabytes=0.81,
        ),
        DataSet(
            "food101",
            "images",
            "Food-101",
            "not stated",
            (75_750, 25_250),
            hub="ethz/food101",
            test="validation",
            classes=101,
            gigabytes=5.0,
        ),
        DataSet(
            "aircraft",
            "images",
            "FGVC-Aircraft (variants)",
            "non-commercial research",
            (6_667, 3_333),
            hub="mteb/FGVCAircraft",
            train=("train", "validation"),
            columns=("image", "variant"),
            classes=100,
        ),
        DataSet(
            "birdsnap",
            "images",
            "Birdsnap",
            "not stated",
            (47_386, 2_443),
            hub="isaacchung/birdsnap",
            columns=("image", "common"),
            classes=500,
        ),
        DataSet(
            "wmt14-de-en",
            "pairs",
            "WMT14 German to English",
            "not stated",
            (4_508_785, 3_003),
            hub="wmt/wmt14",
            config="de-en",
            revision="b199e406369ec1b7634206d3ded5ba45de2fe696",
            columns=("translation", "de"),
            gigabytes=1.7,
        ),
        DataSet(
            "opus100",
            "pairs",
            "OPUS-100, a public stand-in for the paper's private corpus of 102 languages",
            "not stated",
            (0, 0),
            hub="Helsinki-NLP/opus-100",
            revision="805090dc28bf78897da9641cdf08b61287580df9",
            columns=("translation", ""),
        ),
        DataSet("toy", "pairs", "toy languages", "MIT (generated)", (0, 0)),
    )
}


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
