"""The images of a data set and their labels: read, decoded, and numbered by class."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from repro.data.registry import DataSet
from repro.data.sources import open_rows

_COLUMNS = ("image", "img"), ("label", "labels", "fine_label", "target")  # usual names


@dataclass(frozen=True)
class Images:
    """A training or test set.

    Attributes:
        names: of the classes.
        labels: int64 [examples].
        pixels: gives the uint8 [3, size, size] of an example.
        whole: there is no test set of its own, so that this is the whole data set.
    """

    names: tuple[str, ...]
    labels: np.ndarray
    pixels: Callable[[int], Tensor]
    whole: bool


def open_image_rows(entry: DataSet, size: int, train: bool) -> Images:
    """Open the training or test set; no image is decoded yet.

    Raises:
        ValueError: the data is not there, or its columns or labels are unusable. One line.
    """
    if not entry.hub and not entry.local:
        pixels, labels = _digits(size)
        return Images(tuple("0123456789"), labels, pixels.__getitem__, whole=True)
    from datasets import Image

    rows, whole = open_rows(entry, train)
    image, label = _columns(entry, rows)
    if isinstance(rows.features[image], Image):
        rows = rows.cast_column(image, Image(decode=False))
    names = _class_names(entry, rows, label, train)
    labels = _class_numbers(entry, rows.select_columns([label])[:][label], names)

    def pixels_of(example: int) -> Tensor:
        return decode(rows[example][image], size, f"image {example} of {entry.name}")

    return Images(names, labels, pixels_of, whole)


@cache
def _digits(size: int) -> tuple[Tensor, np.ndarray]:
    """Pixels of all digits, uint8 [1797, 3, size, size], and labels, int64 [1797]."""
    from sklearn.datasets import load_digits

    bunch: Any = load_digits()
    grey = torch.tensor(bunch.images, dtype=torch.float32).unsqueeze(1) * (255 / 16)
    grey = functional.interpolate(grey, (size, size), mode="bilinear", align_corners=False)
    pixels = grey.round().clamp(0, 255).to(torch.uint8)
    return pixels.expand(-1, 3, -1, -1), bunch.target.astype(np.int64)


def decode(value: Any, size: int, name: str) -> Tensor:
    """Pixels of one stored image, uint8 [3, size, size]: the middle of it, resized.

    The value is its bytes, or {"bytes": ..., "path": ...}.

    Raises:
        ValueError: it does not decode. One line, which names the image.
    """
    from PIL import Image, ImageOps

    where = ""
    if isinstance(value, dict):
        where = f" ({value['path']})" if value.get("path") else ""
        value = value.get("bytes") or value.get("path")
    try:
        with Image.open(io.BytesIO(value) if isinstance(value, bytes) else value) as image:
            picture = ImageOps.fit(image.convert("RGB"), (size, size), Image.Resampling.BICUBIC)
    except Exception as error:  # decoders raise OSError, SyntaxError, ValueError, struct.error, ...
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{name}{where} does not decode: {reason}; replace or remove it") from None
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1)


def _columns(entry: DataSet, rows: Any) -> tuple[str, str]:
    """The columns of images and labels: those of the registry, else the typed or usual ones."""
    from datasets import ClassLabel, Image

    found = entry.columns
    if entry.local:
        choices = []
        for kind, usual in zip((Image, ClassLabel), _COLUMNS, strict=True):
            typed = [name for name, feature in rows.features.items() if isinstance(feature, kind)]
            named = [name for name in usual if name in rows.features]
            choices.append([*typed, *named, usual[0]][0])
        found = choices[0], choices[1]
    for column in found:
        if column not in rows.features:
            raise ValueError(
                f"data={entry.name!r}: there is no column {column!r}; it has "
                f"{', '.join(rows.features)}, and needs an image and a label"
            )
    return found


def _class_names(entry: DataSet, rows: Any, label: str, train: bool) -> tuple[str, ...]:
    """Names of the classes: typed ones, or the different labels of the training set, sorted."""
    from datasets import ClassLabel

    kind = rows.features[label]
    if isinstance(kind, ClassLabel):
        return tuple(kind.names)
    if not train:
        rows, _ = open_rows(entry, True)
    values = set(rows.unique(label)) - {None}
    if not values:
        raise ValueError(f"data={entry.name!r}: no row has a label; try --data digits")
    if all(isinstance(value, int) for value in values):
        return tuple(map(str, range(entry.classes or max(values) + 1)))
    return tuple(sorted(map(str, values)))


def _class_numbers(entry: DataSet, values: Sequence[Any], names: tuple[str, ...]) -> np.ndarray:
    """Labels as numbers of classes, int64; a ValueError if one is out of range."""
    by_name = {name: number for number, name in enumerate(names)}
    labels = np.array(
        [value if isinstance(value, int) else by_name.get(str(value), -1) for value in values],
        dtype=np.int64,
    )
    bad = np.flatnonzero((labels < 0) | (labels >= len(names)))
    if len(bad):
        raise ValueError(
            f"data={entry.name!r}: the label of row {bad[0]} is {values[int(bad[0])]!r}; allowed "
            f"are 0 to {len(names) - 1}, the classes of the training set"
        )
    return labels
