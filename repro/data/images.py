"""Images to measure with: the 1797 handwritten digits of scikit-learn, resized to a given size.

The paper uses ImageNet. Speed, memory and exactness of a pipeline do not depend on what the images
show. `repro.data.classification` has the image sets to train on, the digits among them.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

LABEL = "scikit-learn digits"

# Mean and standard deviation of the 8x8 originals, scaled to [0, 1].
GREY_MEAN, GREY_STD = 0.3053, 0.3760


def batch(N: int, size: int, seed: int) -> tuple[Tensor, Tensor]:
    """N digits, drawn without replacement up to N = 1797, and their labels, int64 [N].

    Images are float32 [N, 3, size, size], normalised.
    """
    from sklearn.datasets import load_digits

    bunch: Any = load_digits()
    rng = np.random.default_rng(seed)
    rows = rng.choice(len(bunch.target), N, replace=len(bunch.target) < N)
    # [N, 1, 8, 8], 0 to 16
    pixels = torch.tensor(bunch.images[rows], dtype=torch.float32).unsqueeze(1)
    pixels = (pixels / 16 - GREY_MEAN) / GREY_STD
    pixels = functional.interpolate(pixels, (size, size), mode="bilinear", align_corners=False)
    return pixels.repeat(1, 3, 1, 1), torch.tensor(bunch.target[rows])
