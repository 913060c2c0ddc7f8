"""Random changes of training images; each change depends on (seed, epoch, example) only."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from torch import Tensor

Augment = Literal["none", "flip", "cutout"]
"""cutout also flips. The paper fine-tunes with flips and cutout (section 4).

A random resized crop is missing. It needs the whole image, and images are cut to their middle when
they are decoded (`repro.data.classification.decode`).
"""


def augmented(image: Tensor, key: Sequence[int], augment: Augment) -> Tensor:
    """A random variant of a normalised image [3, height, width].

    The same key, such as (seed, epoch, example), gives the same variant.
    """
    rng = np.random.default_rng(key)
    if rng.random() < 0.5:
        image = image.flip(2)
    if augment == "cutout":
        # The paper does not state the size. Half of height and width is that of the authors of
        # cutout on CIFAR-10 (DeVries and Taylor, arXiv:1708.04552).
        height, width = image.shape[1] // 2, image.shape[2] // 2
        top = rng.integers(image.shape[1] - height + 1)
        left = rng.integers(image.shape[2] - width + 1)
        image = image.clone()
        image[:, top : top + height, left : left + width] = 0  # the mean colour
    return image
