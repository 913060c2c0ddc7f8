"""Random changes of training images by timm; each depends on (seed, epoch, example) only."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

Augment = Literal["none", "flip", "cutout", "autoaugment"]
"""cutout and autoaugment also flip. The paper fine-tunes with flips and cutout (section 4).

A random resized crop is missing. It needs the whole image, and images are cut to their middle when
they are decoded (`repro.data.classification.decode`).
"""

# The paper does not state the size of its cutout; this is a square of half the height and width, as
# in the experiments with CIFAR-10 of its authors (DeVries and Taylor, arXiv:1708.04552).
_CUTOUT_AREA = 0.25


class Augmentation:
    """Changes images between 8-bit pixels and normalised input.

    Mean and standard deviation are those of the pixels of each channel, from 0 to 1.
    """

    def __init__(self, name: Augment, mean: float | Tensor, std: float | Tensor) -> None:
        self.mean, self.std = mean, std
        self._changes: list[Callable[[Any], Any]] = [self.normalise]
        if name != "none":
            from torchvision.transforms import RandomHorizontalFlip

            self._changes.insert(0, RandomHorizontalFlip())
        if name == "autoaugment":
            from timm.data.auto_augment import auto_augment_transform
            from torchvision.transforms.functional import pil_to_tensor, to_pil_image

            policy = auto_augment_transform("original", {"img_mean": (124, 116, 104)})
            self._changes.insert(0, lambda pixels: pil_to_tensor(policy(to_pil_image(pixels))))
        if name == "cutout":
            from timm.data.random_erasing import RandomErasing

            area: Any = {"min_area": _CUTOUT_AREA, "max_area": _CUTOUT_AREA, "min_aspect": 1.0}
            # In normalised input zero is the mean colour.
            self._changes.append(RandomErasing(1.0, **area, mode="const", device="cpu"))

    def __call__(self, pixels: Tensor, keys: list[tuple[int, ...]]) -> Tensor:
        """Change and normalise uint8 [n, 3, height, width] to float32.

        A key of each image is what its changes depend on, such as (seed, epoch, example).
        """
        if len(self._changes) == 1:  # nothing is random
            return self.normalise(pixels)
        images = []
        for image, key in zip(pixels, keys, strict=True):
            with _seeded(key):
                for change in self._changes:
                    image = change(image)
            images.append(image)
        return torch.stack(images)

    def normalise(self, pixels: Tensor) -> Tensor:
        """float32 input of mean 0 and standard deviation 1, from uint8 [..., 3, height, width]."""
        return (pixels / 255).sub_(self.mean).div_(self.std)


@contextmanager
def _seeded(key: tuple[int, ...]) -> Iterator[None]:
    """Seed the generators that timm and torchvision draw from; at the end they are as before."""
    states = random.getstate(), np.random.get_state()
    seeds = np.random.SeedSequence(key).generate_state(3)
    try:
        # Seeding only torch's generator of the CPU leaves those of GPUs, of dropout, alone.
        with torch.random.fork_rng(devices=[]):
            random.seed(int(seeds[0]))
            np.random.seed(int(seeds[1]))
            torch.default_generator.manual_seed(int(seeds[2]))
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
