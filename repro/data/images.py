"""Images to measure with: the 1797 handwritten digits of scikit-learn, resized to a given size.

The paper uses ImageNet. Speed, memory and exactness of a pipeline do not depend on the content of
the images. `repro.data.classification` has the image sets to train on, including the digits.
"""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

LABEL = "scikit-learn digits"

# Mean and standard deviation of the 8x8 originals, scaled to [0, 1].
GREY_MEAN, GREY_STD = 0.3053, 0.3760


def digits() -> tuple[Tensor, Tensor]:
    """All digits: grey float32 [1797, 1, 8, 8] from 0 to 16, and their labels, int64 [1797]."""
    # scikit-learn takes two seconds to import, and each process of a run would do it.
    package = find_spec("sklearn")
    assert package is not None
    assert package.origin is not None
    rows = np.loadtxt(Path(package.origin).parent / "datasets/data/digits.csv.gz", delimiter=",")
    pixels = torch.tensor(rows[:, :-1], dtype=torch.float32)
    return pixels.reshape(-1, 1, 8, 8), torch.tensor(rows[:, -1], dtype=torch.int64)


def batch(size: int, classes: int, N: int, seed: int) -> tuple[Tensor, Tensor]:
    """N digits, drawn without replacement up to N = 1797: images and classes, int64 [N].

    Images are float32 [N, 3, size, size], normalised. Classes are the labels modulo their number.
    """
    pixels, labels = digits()
    rng = np.random.default_rng(seed)
    rows = rng.choice(len(labels), N, replace=len(labels) < N)
    images = resized((pixels[rows] / 16 - GREY_MEAN) / GREY_STD, size)
    return images.repeat(1, 3, 1, 1), labels[rows] % classes


def resized(images: Tensor, size: int) -> Tensor:
    return functional.interpolate(images, (size, size), mode="bilinear", align_corners=False)
