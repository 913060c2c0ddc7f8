"""Image classification: batches of a named data set.

The paper trains on ImageNet and fine-tunes on seven other sets (section 4, Table 4). Those need a
network. The grey sets need none: scikit-learn's digits, which are the default, and the sets of
`repro.data.glyphs`.

The grey sets have no test images of their own. One rule divides them for every task and seed: every
fifth example of each class, in the order of the data set, is a test example.
"""

import io
from collections.abc import Callable, Sequence
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from annotated_types import Interval
from pydantic import ConfigDict
from torch import Tensor

from repro.data.augment import Augment, augmented
from repro.data.batches import Batches, Evaluation
from repro.data.glyphs import CLASSES, pictures
from repro.data.images import GREY_MEAN, GREY_STD, digits, resized
from repro.data.registry import DataSet, find
from repro.data.sources import Part, is_in, open_rows
from repro.io.explain import Frozen

_GREY = {"digits": "0123456789", **CLASSES}  # classes of the sets that need no network
_KEPT_BYTES = 2**30  # images are decoded once if all of them fit into this
# Names of a task's fields in the labels of a result, if not the field's own name.
_LABELS = {
    "per_class": "training images per class",
    "rotate": "rotated by degrees",
    "augment": "augmentation",
    "shuffled": "share of the classes with shuffled training labels",
}
# Of ImageNet's red, green and blue.
_MEAN = torch.tensor((0.485, 0.456, 0.406)).view(3, 1, 1)
_STD = torch.tensor((0.229, 0.224, 0.225)).view(3, 1, 1)


class ImageTask(Frozen):
    """Which images of a data set, and which classes they have."""

    model_config = ConfigDict(strict=True)

    name: str = "digits"  # see `repro.data.registry.find`
    size: Annotated[int, Interval(ge=1)] = 32  # pixels; the middle is cut out and resized
    per_class: Annotated[int, Interval(ge=1)] | None = (
        None  # only the first training images of each class
    )
    rotate: Literal[0, 90, 180, 270] = 0  # degrees, counter-clockwise
    # The class, or whether its number is odd (1) or even (0).
    labels: Literal["identity", "parity"] = "identity"
    augment: Augment = "none"  # random changes of training images
    validation: bool = False  # whether training leaves out a part, to validate with
    # Share of the classes, the last ones, whose training labels are shuffled among themselves.
    shuffled: Annotated[float, Interval(ge=0, le=1)] = 0.0

    def labels_of_result(self) -> dict[str, str]:
        """Facts that every result must state: the data set, and how it was changed."""
        changed = self.model_dump(exclude={"name", "size", "validation"}, exclude_defaults=True)
        facts = {_LABELS.get(name, name): str(value) for name, value in changed.items()}
        return {"data": find(self.name).title, **facts}

    def normalised(self, pixels: Tensor) -> Tensor:
        """float32 input of mean 0 and standard deviation 1, from uint8 [n, 3, size, size]."""
        mean, std = (GREY_MEAN, GREY_STD) if self.name in _GREY else (_MEAN, _STD)
        return (pixels / 255).sub_(mean).div_(std)


def open_images(task: ImageTask, N: int, seed: int, replica: int = 0, replicas: int = 1) -> Batches:
    """Training batches without end: inputs float32 [N / D, 3, size, size], targets int64 [N / D].

    The seed fixes order and augmentation. Data that cannot be read is a ValueError of one line.
    """
    pixels, targets = _open(task, "train")

    def read(_tables: np.ndarray, places: np.ndarray, epochs: np.ndarray) -> tuple[Tensor, Tensor]:
        inputs = task.normalised(pixels(places))
        if task.augment != "none":
            keys = [(seed, *key) for key in zip(epochs.tolist(), places.tolist(), strict=True)]
            inputs = torch.stack(
                [augmented(*pair, task.augment) for pair in zip(inputs, keys, strict=True)]
            )
        return inputs, targets[places]

    return Batches([len(targets)], read, N, seed, task.labels_of_result(), replica, replicas)


def evaluation_images(
    task: ImageTask, N: int, part: Part = "test", most: int | None = None
) -> Evaluation:
    """All images of a part once, not augmented, in batches of N; the last batch may be smaller.

    If the part has more than `most` images, so many of them are taken, evenly spaced.
    """
    pixels, targets = _open(task, part)
    count = min(len(targets), most or len(targets))
    chosen = np.linspace(0, len(targets) - 1, count).round().astype(int)

    def read(at: np.ndarray) -> tuple[Tensor, Tensor]:
        return task.normalised(pixels(chosen[at])), targets[chosen[at]]

    return Evaluation(count, read, N)


def _open(task: ImageTask, part: Part) -> tuple[Callable[[np.ndarray], Tensor], Tensor]:
    """A function that reads images by place, uint8 [n, 3, size, size], and all targets, int64."""
    entry = find(task.name)
    if entry.kind != "images":
        raise ValueError(f"data={task.name!r}: {entry.title} are sentences; try digits")
    images = _images(entry, task.size, part != "test")
    chosen = []
    for label in range(len(images.names)):
        examples = np.flatnonzero(images.labels == label)
        examples = examples[is_in(part, len(examples), images.whole, task.validation)]
        if part == "train" and task.per_class is not None:
            if len(examples) < task.per_class:
                raise ValueError(
                    f"per_class={task.per_class}: class {images.names[label]!r} of {task.name} has "
                    f"{len(examples)} training images; try per_class={len(examples)}"
                )
            examples = examples[: task.per_class]
        chosen.append(examples)
    selected = np.sort(np.concatenate(chosen))  # in the order of the data set
    numbers = images.labels[selected]
    if part == "train":
        first = round((1 - task.shuffled) * len(images.names))
        numbers[numbers >= first] = np.random.default_rng(0).permutation(numbers[numbers >= first])
    labels = torch.from_numpy(numbers)

    def image(place: int) -> Tensor:
        return images.pixels(int(selected[place])).rot90(task.rotate // 90, (1, 2))

    read = cache(image) if len(selected) * 3 * task.size**2 <= _KEPT_BYTES else image
    targets = labels % 2 if task.labels == "parity" else labels
    return lambda places: torch.stack([read(place) for place in places.tolist()]), targets


class Images(NamedTuple):
    """A training set or a test set."""

    names: Sequence[str]  # of the classes
    labels: np.ndarray  # int64 [examples]
    pixels: Callable[[int], Tensor]  # gives the uint8 [3, size, size] of an example
    whole: bool  # whether this is the whole data set, which has no test set of its own


def _images(entry: DataSet, size: int, train: bool) -> Images:
    if entry.name in _GREY:
        pixels, labels = _grey(entry.name, size)
        return Images(_GREY[entry.name], labels, pixels.__getitem__, whole=True)
    from datasets import ClassLabel, Image

    image, label = entry.columns
    rows = open_rows(entry, train).cast_column(image, Image(decode=False))
    kind = rows.features[label]
    if isinstance(kind, ClassLabel):
        names, numbers = kind.names, rows[label]
    else:  # names of the classes
        training = rows if train else open_rows(entry, True)
        names = sorted(training.unique(label))
        numbers = [names.index(name) for name in rows[label]]

    def pixels_of(example: int) -> Tensor:
        return decode(rows[example][image], size, f"image {example} of {entry.name}")

    return Images(names, np.array(numbers), pixels_of, whole=False)


@cache
def _grey(name: str, size: int) -> tuple[Tensor, np.ndarray]:
    """Pixels of a whole grey set, uint8 [examples, 3, size, size], and labels, int64 [examples]."""
    if name == "digits":
        grey, labels = digits()
        grey = grey * (255 / 16)
    else:
        grey, labels = pictures(name)
    pixels = resized(grey.float(), size).round().clamp(0, 255).to(torch.uint8)
    return pixels.expand(-1, 3, -1, -1), labels.numpy()


def decode(stored: dict[str, Any], size: int, name: str) -> Tensor:
    """Pixels of an image {"bytes": ..., "path": ...}, uint8 [3, size, size]: its middle, resized.

    A one-line ValueError names an image that cannot be decoded.
    """
    from PIL import Image, ImageOps

    source = stored["path"] if stored["bytes"] is None else io.BytesIO(stored["bytes"])
    try:
        with Image.open(source) as image:
            picture = ImageOps.fit(image.convert("RGB"), (size, size), Image.Resampling.BICUBIC)
    except Exception as error:  # decoders raise OSError, SyntaxError, ValueError, struct.error, ...
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{name} cannot be decoded: {reason}") from None
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1)
