"""Image classification: batches of a named data set, or of images on this machine.

The paper trains on ImageNet and fine-tunes on seven other sets (section 4, Table 4). Those need a
network; the default is scikit-learn's digits, which need none.

A set without test images of its own, such as the digits, is split by one rule for every task and
seed: every fifth example of each class, counted in the order of the data set, is a test example.
"""

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from repro.data.augment import Augment, Augmentation
from repro.data.batches import Batches, Evaluation, Stream, Table
from repro.data.images import GREY_MEAN, GREY_STD
from repro.data.registry import DataSet, find
from repro.data.sources import TEST_EVERY, open_rows

Labels = Literal["identity", "parity"]
_KEPT_BYTES = 2**30  # images are decoded once if all of them fit into this
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's red, green and blue
_IMAGE_COLUMNS, _LABEL_COLUMNS = ("image", "img"), ("label", "labels", "fine_label", "target")


@dataclass(frozen=True)
class Task:
    """Which images of a data set, and what is asked about them.

    Attributes:
        name: a data set, see `repro.data.registry.find`.
        size: height and width in pixels; the shorter side is resized, the middle is cut out.
        classes: only these of its classes; their labels become 0, 1, ... in this order.
        per_class: the first so many training examples of each class.
        rotate: degrees, counter-clockwise: 0, 90, 180 or 270.
        labels: "identity" asks for the class, "parity" whether its number is odd (1) or even (0).
    """

    name: str = "digits"
    size: int = 32
    classes: range | None = None
    per_class: int | None = None
    rotate: int = 0
    labels: Labels = "identity"


@dataclass(frozen=True)
class _Images:
    """Images that can be read in any order, with their labels; or rows that only stream."""

    entry: DataSet
    labels: np.ndarray
    """int64 [examples]; empty for a stream."""
    names: tuple[str, ...]
    pixels: Callable[[int], Tensor] | None
    """The uint8 [3, size, size] of an example."""
    whole: bool
    """There is no test set of its own."""
    rows: Any = None
    columns: tuple[str, str] = ("image", "label")


def open_images(
    name: str,
    size: int,
    N: int,
    seed: int,
    classes: range | None = None,
    per_class: int | None = None,
    rotate: int = 0,
    labels: Labels = "identity",
    augment: Augment = "none",
    replica: int = 0,
    replicas: int = 1,
    stream: bool | None = None,
) -> Batches:
    """Training batches without end: inputs float32 [N / D, 3, size, size], targets int64 [N / D].

    Args:
        name: a data set, see `repro.data.registry.find`.
        size, classes, per_class, rotate, labels: see `Task`.
        N: examples of a mini-batch over all replicas.
        seed: fixes order and augmentation.
        augment: random changes, see `repro.data.augment`.
        replica: number of this replica.
        replicas: D.
        stream: read from front to back instead of in any order; by default only ImageNet is.

    Raises:
        ValueError: a bad argument, or data that is not there. One line.
    """
    task = Task(name, size, classes, per_class, rotate, labels)
    entry, chosen = _checked(task)
    images = _open(task, entry, True, entry.stream if stream is None else stream)
    change = _augmentation(entry, augment)
    facts = _facts(entry, task, chosen, augment)
    wanted = chosen or range(len(images.names))
    if images.pixels is None:
        return _stream(images, task, wanted, change, N, seed, facts, replica, replicas)
    examples = _select(images, wanted, True, per_class, task)
    decoded = _Decoded(images.pixels, examples, task, None if change.random else change.normalise)
    targets = _targets(images.labels[examples], wanted, labels)

    def read(places: np.ndarray, epochs: np.ndarray) -> tuple[Tensor, Tensor]:
        inputs = decoded(places)
        if change.random:
            keys = zip(epochs.tolist(), places.tolist(), strict=True)
            inputs = change(inputs, [(seed, epoch, place) for epoch, place in keys])
        return inputs, targets[places]

    return Table(len(examples), read, N, seed, facts, replica, replicas)


def evaluation_images(
    name: str,
    size: int,
    N: int,
    classes: range | None = None,
    rotate: int = 0,
    labels: Labels = "identity",
    train: bool = False,
) -> Sequence[tuple[Tensor, Tensor]]:
    """All test images once, in batches of N; the last batch may be smaller.

    With `train`, all training images instead: the accuracy on these shows over-fitting.
    """
    task = Task(name, size, classes, None, rotate, labels)
    entry, chosen = _checked(task)
    images = _open(task, entry, train, stream=False)
    wanted = chosen or range(len(images.names))
    assert images.pixels is not None
    examples = _select(images, wanted, train, None, task)
    decoded = _Decoded(images.pixels, examples, task, _augmentation(entry, "none").normalise)
    targets = _targets(images.labels[examples], wanted, labels)

    def read(places: np.ndarray, epochs: np.ndarray) -> tuple[Tensor, Tensor]:
        return decoded(places), targets[places]

    return Evaluation(len(examples), read, N, _facts(entry, task, chosen, "none"))


def count_classes(name: str, classes: range | None = None, labels: Labels = "identity") -> int:
    """Outputs that a classifier of these images needs."""
    task = Task(name, classes=classes, labels=labels)
    entry, chosen = _checked(task)
    if labels == "parity":
        return 2
    if chosen is not None:
        return len(chosen)
    return entry.classes or len(_open(task, entry, True, stream=False).names)


def _checked(task: Task) -> tuple[DataSet, range | None]:
    """The data set, and the classes that are wanted, None for all of them."""
    entry = find(task.name)
    if entry.kind != "images":
        raise ValueError(f"data={task.name!r}: {entry.title} are sentences, not images; try digits")
    if task.size < 1:
        raise ValueError(f"size={task.size}: must be a positive number of pixels; try size=32")
    if task.rotate not in (0, 90, 180, 270):
        raise ValueError(f"rotate={task.rotate}: allowed are 0, 90, 180 and 270 degrees")
    if task.labels not in ("identity", "parity"):
        raise ValueError(f"labels={task.labels!r}: allowed are identity and parity")
    if task.per_class is not None and task.per_class < 1:
        raise ValueError(f"per_class={task.per_class}: must be at least 1")
    if entry.chosen is not None and task.classes is not None:
        raise ValueError(
            f"classes={task.classes}: the name {task.name!r} chooses classes too; use one of both"
        )
    return entry, entry.chosen or task.classes


def _augmentation(entry: DataSet, augment: Augment) -> Augmentation:
    if entry.hub or entry.local:
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in (_MEAN, _STD))
        return Augmentation(augment, mean, std)
    return Augmentation(augment, GREY_MEAN, GREY_STD)


def _facts(entry: DataSet, task: Task, chosen: range | None, augment: Augment) -> dict[str, str]:
    """What every result must state: the data set, and what was done to it."""
    facts = {"data": entry.title}
    if chosen is not None:
        facts["classes"] = f"{chosen[0]}-{chosen[-1]}"
    if task.per_class is not None:
        facts["training images per class"] = str(task.per_class)
    if task.rotate:
        facts["rotated by degrees"] = str(task.rotate)
    if task.labels != "identity":
        facts["labels"] = task.labels
    if augment != "none":
        facts["augmentation"] = augment
    return facts


def _open(task: Task, entry: DataSet, train: bool, stream: bool) -> _Images:
    if not entry.hub and not entry.local:
        pixels, labels = _digits(task.size)
        return _Images(entry, labels, tuple("0123456789"), pixels.__getitem__, whole=True)
    from datasets import Image

    rows, whole = open_rows(entry, train, stream)
    image, label = _columns(entry, rows)
    if isinstance(rows.features[image], Image):
        rows = rows.cast_column(image, Image(decode=False))
    names = _class_names(entry, rows, label, train, stream)
    if stream:
        if whole and entry.local:
            raise ValueError(
                f"data={entry.name!r}: a stream needs test files of its own; leave stream out"
            )
        return _Images(entry, np.empty(0, np.int64), names, None, whole, rows, (image, label))
    labels = _numbers(entry, rows.select_columns([label])[:][label], names)

    def pixels_of(example: int) -> Tensor:
        return decode(rows[example][image], task.size, f"image {example} of {entry.name}")

    return _Images(entry, labels, names, pixels_of, whole)


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


class _Decoded:
    """Images of chosen examples, decoded at the first use and kept if all of them fit.

    Args:
        pixels: gives the uint8 [3, size, size] of an example.
        examples: the chosen ones.
        task: size and rotation.
        finish: what else is done to the pixels before they are kept.
    """

    def __init__(
        self,
        pixels: Callable[[int], Tensor],
        examples: np.ndarray,
        task: Task,
        finish: Callable[[Tensor], Tensor] | None,
    ) -> None:
        self._pixels, self._examples, self._finish = pixels, examples, finish
        self._turns = task.rotate // 90
        shape = (len(examples), 3, task.size, task.size)
        dtype = torch.float32 if finish else torch.uint8
        self._missing = set(range(len(examples)))
        self._kept: Tensor | None = None
        if math.prod(shape) * dtype.itemsize <= _KEPT_BYTES:
            self._kept = torch.empty(shape, dtype=dtype)

    def __call__(self, places: np.ndarray) -> Tensor:
        """[n, 3, size, size] of the examples at these places."""
        if self._kept is None:
            return torch.stack([self._image(place) for place in places])
        for place in self._missing.intersection(places.tolist()):
            self._kept[place] = self._image(place)
            self._missing.remove(place)
        return self._kept.index_select(0, torch.from_numpy(places))

    def _image(self, place: int) -> Tensor:
        pixels = self._pixels(int(self._examples[place])).rot90(self._turns, (1, 2))
        return self._finish(pixels) if self._finish else pixels


def _select(
    images: _Images, wanted: range, train: bool, per_class: int | None, task: Task
) -> np.ndarray:
    """The numbers of the examples of a task, in the order of the data set."""
    if wanted[-1] >= len(images.names):
        raise ValueError(
            f"classes={wanted[0]}-{wanted[-1]}: {task.name} has {len(images.names)} classes; "
            f"allowed are 0 to {len(images.names) - 1}"
        )
    chosen = []
    for label in wanted:
        examples = np.flatnonzero(images.labels == label)
        if images.whole:
            is_test = np.arange(len(examples)) % TEST_EVERY == TEST_EVERY - 1
            examples = examples[~is_test if train else is_test]
        if per_class is not None and len(examples) < per_class:
            raise ValueError(
                f"per_class={per_class}: class {images.names[label]!r} of {task.name} has "
                f"{len(examples)} training images; try per_class={len(examples)}"
            )
        chosen.append(examples[:per_class])
    selected = np.sort(np.concatenate(chosen))
    if not len(selected):
        kind = "training" if train else "test"
        raise ValueError(
            f"data={task.name!r}: there are no {kind} images of these classes; without a test set "
            f"of its own a class needs at least {TEST_EVERY} images"
        )
    return selected


def _targets(labels: np.ndarray, wanted: range, kind: Labels) -> Tensor:
    if kind == "parity":
        return torch.from_numpy(labels % 2)
    return torch.from_numpy((labels - wanted.start) // wanted.step)


def _columns(entry: DataSet, rows: Any) -> tuple[str, str]:
    """The names of the columns of images and labels."""
    from datasets import ClassLabel, Image

    if rows.features is None:
        raise ValueError(f"data={entry.name!r}: its columns have no types; leave stream out")
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


def _class_names(
    entry: DataSet, rows: Any, label: str, train: bool, stream: bool
) -> tuple[str, ...]:
    """Names of the classes: typed ones, or the different labels of the training set, sorted."""
    from datasets import ClassLabel

    kind = rows.features[label]
    if isinstance(kind, ClassLabel):
        return tuple(kind.names)
    if not train:
        rows, _ = open_rows(entry, True, stream)
    # Only this column is read.
    values = {row[label] for row in rows.select_columns([label])}
    if not all(isinstance(value, int) for value in values):
        return tuple(sorted(map(str, values)))
    if min(values) < 0:
        raise ValueError(
            f"data={entry.name!r}: label {min(values)} is out of range; labels must be 0, 1, 2, ..."
        )
    return tuple(map(str, range(entry.classes or max(values) + 1)))


def _numbers(entry: DataSet, values: Sequence[Any], names: tuple[str, ...]) -> np.ndarray:
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


def _stream(
    images: _Images,
    task: Task,
    wanted: range,
    change: Augmentation,
    N: int,
    seed: int,
    facts: dict[str, str],
    replica: int,
    replicas: int,
) -> Stream:
    if task.per_class is not None:
        raise ValueError(
            f"per_class={task.per_class}: {task.name} is read as a stream, which cannot be counted "
            "by class beforehand; leave per_class out"
        )
    image, label = images.columns
    rows = images.rows
    if len(wanted) < len(images.names):
        kept = [images.names[number] for number in wanted] + list(wanted)
        rows = rows.filter(lambda row: row[label] in kept)

    def collate(batch: list[Any], numbers: list[tuple[int, int]]) -> tuple[Tensor, Tensor]:
        labels = _numbers(images.entry, [row[label] for row in batch], images.names)
        pixels = [
            decode(row[image], task.size, f"image {number} of {task.name}, replica {replica}")
            for row, (_, number) in zip(batch, numbers, strict=True)
        ]
        turned = torch.stack(pixels).rot90(task.rotate // 90, (2, 3))
        keys = [(seed, epoch, number, replica) for epoch, number in numbers]
        return change(turned, keys), _targets(labels, wanted, task.labels)

    return Stream(rows, collate, N, seed, facts, replica, replicas)
