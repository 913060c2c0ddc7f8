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

_IMAGE_COLUMNS, _LABEL_COLUMNS = ("image", "img"), ("label", "labels", "fine_label", "target")


@dataclass(frozen=True)
class Images:
    names: tuple[str, ...]
    """Of the classes."""
    labels: np.ndarray
    """int64 [examples]."""
    pixels: Callable[[int], Tensor]
    """The uint8 [3, size, size] of an example."""
    whole: bool
    """There is no test set of its own, so that this is the whole data set."""


def open_image_rows(entry: DataSet, size: int, train: bool) -> Images:
    """Open the training or test set; no image is decoded yet.

    Args:
        entry: an image set.
        size: height and width in pixels.
        train: the training set, else the test set.

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
    """Pixels of one stored image, uint8 [3, size, size].

    Args:
        value: its bytes, or {"bytes": ..., "path": ...}.
        size: the shorter side is resized to this, and the middle is cut out.
        name: of the image, for the message.

    Raises:
        ValueError: it does not decode. One line.
    """
    from PIL import Image, ImageOps

    path = None
    if isinstance(value, dict):
        path, value = value.get("path"), value.get("bytes") or value.get("path")
    try:
        with Image.open(io.BytesIO(value) if isinstance(value, bytes) else value) as image:
            picture = ImageOps.fit(image.convert("RGB"), (size, size), Image.Resampling.BICUBIC)
    except Exception as error:  # decoders raise OSError, SyntaxError, ValueError, struct.error, ...
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        where = f" ({path})" if path else ""
        raise ValueError(f"{name}{where} does not decode: {reason}; replace or remove it") from None
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1)


def _columns(entry: DataSet, rows: Any) -> tuple[str, str]:
    from datasets import ClassLabel, Image

    if not entry.local:
        wanted = entry.columns
    else:
        typed = [name for name, kind in rows.features.items() if isinstance(kind, Image)]
        classes = [name for name, kind in rows.features.items() if isinstance(kind, ClassLabel)]
        wanted = tuple(
            next((name for name in (*first, *usual) if name in rows.features), usual[0])
            for first, usual in ((typed, _IMAGE_COLUMNS), (classes, _LABEL_COLUMNS))
        )
    for column in wanted:
        if column not in rows.features:
            raise ValueError(
                f"data={entry.name!r}: there is no column {column!r}; it has "
                f"{', '.join(rows.features)}, and needs an image and a label"
            )
    return wanted[0], wanted[1]


def _class_names(entry: DataSet, rows: Any, label: str, train: bool) -> tuple[str, ...]:
    """Names of the classes: typed ones, or the different labels of the training set, sorted."""
    from datasets import ClassLabel

    kind = rows.features[label]
    if isinstance(kind, ClassLabel):
        return tuple(kind.names)
    if not train:
        rows, _ = open_rows(entry, True)
    # Only this column is read.
    values = {row[label] for row in rows.select_columns([label])} - {None}
    if not values:
        raise ValueError(f"data={entry.name!r}: no row has a label; try --data digits")
    if not all(isinstance(value, int) for value in values):
        return tuple(sorted(map(str, values)))
    if min(values) < 0:
        raise ValueError(
            f"data={entry.name!r}: label {min(values)} is out of range; labels must be 0, 1, 2, ..."
        )
    return tuple(map(str, range(entry.classes or max(values) + 1)))


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
