"""Image classification: batches of a named data set, or of images on this machine.

The paper trains on ImageNet and fine-tunes on seven other sets (section 4, Table 4). Those need a
network; the default is scikit-learn's digits, which need none.

A set without test images of its own, such as the digits, is split by one rule for every task and
seed: every fifth example of each class, counted in the order of the data set, is a test example.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from repro.data.augment import Augment, Augmentation
from repro.data.batches import Batches, Evaluation
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
        augment: random changes, see `repro.data.augment`.
    """

    name: str = "digits"
    size: int = 32
    classes: range | None = None
    per_class: int | None = None
    rotate: int = 0
    labels: Labels = "identity"
    augment: Augment = "none"

    def __post_init__(self) -> None:
        if self.entry.kind != "images":
            raise ValueError(
                f"data={self.name!r}: {self.entry.title} are sentences, not images; try digits"
            )
        if self.size < 1:
            raise ValueError(f"size={self.size}: must be a positive number of pixels; try size=32")
        if self.rotate not in (0, 90, 180, 270):
            raise ValueError(f"rotate={self.rotate}: allowed are 0, 90, 180 and 270 degrees")
        if self.labels not in ("identity", "parity"):
            raise ValueError(f"labels={self.labels!r}: allowed are identity and parity")
        if self.per_class is not None and self.per_class < 1:
            raise ValueError(f"per_class={self.per_class}: must be at least 1")

    @property
    def entry(self) -> DataSet:
        """Its data set."""
        return find(self.name)

    def chosen(self, total: int) -> range:
        """The classes that are asked for, of all."""
        classes = range(total) if self.classes is None else self.classes
        if not classes or min(classes) < 0 or max(classes) >= total:
            raise ValueError(
                f"classes={classes}: {self.name} has {total} classes; allowed are 0 to {total - 1}"
            )
        return classes

    def augmentation(self) -> Augmentation:
        """Normalises its images, and changes them."""
        if self.entry.hub or self.entry.local:
            mean, std = (torch.tensor(values).view(3, 1, 1) for values in (_MEAN, _STD))
            return Augmentation(self.augment, mean, std)
        return Augmentation(self.augment, GREY_MEAN, GREY_STD)

    def facts(self) -> dict[str, str]:
        """What every result must state: the data set, and what was done to it."""
        facts = {"data": self.entry.title}
        if self.classes is not None:
            facts["classes"] = f"{self.classes[0]}-{self.classes[-1]}"
        if self.per_class is not None:
            facts["training images per class"] = str(self.per_class)
        if self.rotate:
            facts["rotated by degrees"] = str(self.rotate)
        if self.labels != "identity":
            facts["labels"] = self.labels
        if self.augment != "none":
            facts["augmentation"] = self.augment
        return facts


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
        name, size, classes, per_class, rotate, labels, augment: see `Task`.
        N: examples of a mini-batch over all replicas.
        seed: fixes order and augmentation.
        replica: number of this replica.
        replicas: D.

    Raises:
        ValueError: a bad argument, or data that is not there. One line.
    """
    task = Task(name, size, classes, per_class, rotate, labels, augment)
    change = task.augmentation()
    pixels, targets = _open(task, True, None if change.random else change.normalise)

    def read(_tables: np.ndarray, places: np.ndarray, epochs: np.ndarray) -> tuple[Tensor, Tensor]:
        inputs = pixels(places)
        if change.random:
            keys = zip(epochs.tolist(), places.tolist(), strict=True)
            inputs = change(inputs, [(seed, epoch, place) for epoch, place in keys])
        return inputs, targets[places]

    return Batches([len(targets)], read, N, seed, task.facts(), replica, replicas)


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
    pixels, targets = _open(task, train, task.augmentation().normalise)
    return Evaluation(len(targets), lambda places: (pixels(places), targets[places]), N)


def count_classes(name: str, classes: range | None = None, labels: Labels = "identity") -> int:
    task = Task(name, classes=classes, labels=labels)
    total = task.entry.classes or len(open_image_rows(task.entry, task.size, True).names)
    wanted = task.chosen(total)
    return 2 if labels == "parity" else len(wanted)


def check_classes(outputs: object, classes: int) -> None:
    """Raise a one-line ValueError if a model has fewer outputs than its data has classes.

    `outputs` is what a user has given, so it may be no number.
    """
    if not isinstance(outputs, int) or outputs < classes:
        raise ValueError(
            f"num_classes={outputs}: the data has {classes} classes, and each needs an output of "
            f"the model; try num_classes={classes}"
        )


class _Decoded:
    """Images of chosen examples, decoded at the first use and kept if all of them fit.

    `finish` is what else is done to the pixels before they are kept.
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


def _open(
    task: Task, train: bool, finish: Callable[[Tensor], Tensor] | None
) -> tuple[_Decoded, Tensor]:
    """The images of a task, and what is asked about each, int64 [examples]."""
    images = open_image_rows(task.entry, task.size, train)
    classes = task.chosen(len(images.names))
    examples = _select(images, classes, train, task)
    labels = torch.from_numpy(images.labels[examples])
    targets = labels % 2 if task.labels == "parity" else (labels - classes.start) // classes.step
    return _Decoded(images.pixels, examples, task, finish), targets


def _select(images: Images, classes: range, train: bool, task: Task) -> np.ndarray:
    """Numbers of the training or test examples of these classes, in the order of the data set."""
    chosen = []
    for label in classes:
        examples = np.flatnonzero(images.labels == label)
        if images.whole:
            is_test = np.arange(len(examples)) % TEST_EVERY == TEST_EVERY - 1
            examples = examples[~is_test if train else is_test]
        if task.per_class is not None and len(examples) < task.per_class:
            raise ValueError(
                f"per_class={task.per_class}: class {images.names[label]!r} of {task.name} has "
                f"{len(examples)} training images; try per_class={len(examples)}"
            )
        chosen.append(examples[: task.per_class])
    selected = np.sort(np.concatenate(chosen))
    if not len(selected):
        kind = "training" if train else "test"
        raise ValueError(
            f"data={task.name!r}: there are no {kind} images of these classes; without a test set "
            f"of its own a class needs at least {TEST_EVERY} images"
        )
    return selected
