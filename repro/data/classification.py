"""Image classification: batches of a named data set, or of images on this machine.

The paper trains on ImageNet and fine-tunes on seven other sets (section 4, Table 4). Those need a
network; the default is scikit-learn's digits, which need none.

A set without test images of its own, such as the digits, is split by one rule for every task and
seed: every fifth example of each class, counted in the order of the data set, is a test example.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from repro.data.augment import Augment, Augmentation
from repro.data.batches import Batches, Evaluation, Table
from repro.data.image_rows import Images, open_image_rows
from repro.data.images import GREY_MEAN, GREY_STD
from repro.data.registry import DataSet, find
from repro.data.sources import TEST_EVERY

Labels = Literal["identity", "parity"]
_KEPT_BYTES = 2**30  # images are decoded once if all of them fit into this
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's red, green and blue


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

    Raises:
        ValueError: a bad argument, or data that is not there. One line.
    """
    task = Task(name, size, classes, per_class, rotate, labels)
    entry = _checked(task)
    images = open_image_rows(entry, size, True)
    wanted = _wanted(name, len(images.names), classes)
    change = _augmentation(entry, augment)
    facts = _facts(entry, task, augment)
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
    entry = _checked(task)
    images = open_image_rows(entry, size, train)
    wanted = _wanted(name, len(images.names), classes)
    change = _augmentation(entry, "none")
    examples = _select(images, wanted, train, None, task)
    decoded = _Decoded(images.pixels, examples, task, change.normalise)
    targets = _targets(images.labels[examples], wanted, labels)

    def read(places: np.ndarray, epochs: np.ndarray) -> tuple[Tensor, Tensor]:
        return decoded(places), targets[places]

    return Evaluation(len(examples), read, N, _facts(entry, task, "none"))


def count_classes(name: str, classes: range | None = None, labels: Labels = "identity") -> int:
    task = Task(name, classes=classes, labels=labels)
    entry = _checked(task)
    total = entry.classes or len(open_image_rows(entry, task.size, True).names)
    wanted = _wanted(name, total, classes)
    return 2 if labels == "parity" else len(wanted)


def check_classes(outputs: Any, classes: int) -> None:
    """Raise a one-line ValueError if a model has fewer outputs than its data has classes.

    `outputs` is what a user has given, so it may be no number.
    """
    if not isinstance(outputs, int) or outputs < classes:
        raise ValueError(
            f"num_classes={outputs}: the data has {classes} classes, and each needs an output of "
            f"the model; try num_classes={classes}"
        )


def _checked(task: Task) -> DataSet:
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
    return entry


def _augmentation(entry: DataSet, augment: Augment) -> Augmentation:
    if entry.hub or entry.local:
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in (_MEAN, _STD))
        return Augmentation(augment, mean, std)
    return Augmentation(augment, GREY_MEAN, GREY_STD)


def _facts(entry: DataSet, task: Task, augment: Augment) -> dict[str, str]:
    """What every result must state: the data set, and what was done to it."""
    facts = {"data": entry.title}
    if task.classes is not None:
        facts["classes"] = f"{task.classes[0]}-{task.classes[-1]}"
    if task.per_class is not None:
        facts["training images per class"] = str(task.per_class)
    if task.rotate:
        facts["rotated by degrees"] = str(task.rotate)
    if task.labels != "identity":
        facts["labels"] = task.labels
    if augment != "none":
        facts["augmentation"] = augment
    return facts


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


def _wanted(name: str, classes: int, chosen: range | None) -> range:
    if chosen is None:
        return range(classes)
    if not chosen or min(chosen) < 0 or max(chosen) >= classes:
        raise ValueError(
            f"classes={chosen}: {name} has {classes} classes; allowed are 0 to {classes - 1}"
        )
    return chosen


def _select(
    images: Images, wanted: range, train: bool, per_class: int | None, task: Task
) -> np.ndarray:
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
