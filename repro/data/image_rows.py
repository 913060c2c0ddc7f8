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


@dataclass(frozen=True)
class Images:
    """A training or test set."""

    names: Sequence[str]  # of the classes
    labels: np.ndarray  # int64 [examples]
    pixels: Callable[[int], Tensor]  # gives the uint8 [3, size, size] of an example
    whole: bool  # there is no test set of its own, so that this is the whole data set


def open_image_rows(entry: DataSet, size: int, train: bool) -> Images:
    """Open the training or test set; no image is decoded yet."""
    if not entry.hub and not entry.folder:
        pixels, labels = _digits(size)
        return Images("0123456789", labels, pixels.__getitem__, whole=True)
    from datasets import ClassLabel, Image

    rows, whole = open_rows(entry, train)
    image, label = entry.columns
    for column in entry.columns:
        if column not in rows.features:
            raise ValueError(
                f"data={entry.name!r}: there is no column {column!r}; it has "
                f"{', '.join(rows.features)}, and needs an image and a label"
            )
    rows = rows.cast_column(image, Image(decode=False))
    kind = rows.features[label]
    if isinstance(kind, ClassLabel):
        names, values = kind.names, [*map(str, range(len(kind.names)))]
    else:
        training = rows if train else open_rows(entry, True)[0]
        names = values = _sorted_labels(set(training.unique(label)) - {None})
    numbers = {value: number for number, value in enumerate(values)}
    labels = np.array([numbers.get(str(value), -1) for value in rows[label]])
    if (labels < 0).any():
        bad = int(labels.argmin())
        raise ValueError(
            f"data={entry.name!r}: the label of row {bad} is {rows[bad][label]!r}, which is none "
            f"of the {len(names)} classes of the training set"
        )

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


def _sorted_labels(labels: set[Any]) -> list[str]:
    """Labels without a type as texts; numbers count from 0."""
    if labels and all(isinstance(label, int) for label in labels):
        return [*map(str, range(max(labels) + 1))]
    return sorted(map(str, labels))


def decode(stored: dict[str, Any], size: int, name: str) -> Tensor:
    """Pixels of an image {"bytes": ..., "path": ...}, uint8 [3, size, size]: its middle, resized.

    A one-line ValueError names an image that does not decode.
    """
    from PIL import Image, ImageOps

    where = f" ({stored['path']})" if stored["path"] else ""
    source = stored["path"] if stored["bytes"] is None else io.BytesIO(stored["bytes"])
    try:
        with Image.open(source) as image:
            picture = ImageOps.fit(image.convert("RGB"), (size, size), Image.Resampling.BICUBIC)
    except Exception as error:  # decoders raise OSError, SyntaxError, ValueError, struct.error, ...
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{name}{where} does not decode: {reason}; replace or remove it") from None
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1)
