"""Images to measure with: the 1797 handwritten digits of scikit-learn, resized to a given size.

The paper uses ImageNet. Speed, memory and exactness of a pipeline do not depend on what the images
show. `repro.data.classification` has the image sets to train on, the digits among them.
"""

from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

if TYPE_CHECKING:
    from datasets import Dataset

LABEL = "scikit-learn digits"
NUM_CLASSES = 10

# Mean and standard deviation of the 8x8 originals, scaled to [0, 1].
GREY_MEAN, GREY_STD = 0.3053, 0.3760


@cache
def digits(size: int) -> "Dataset":
    """All digits; rows are {"image": float32 [3, size, size], "label": int64}, made when read."""
    from datasets import Dataset
    from sklearn.datasets import load_digits

    bunch: Any = load_digits()
    rows = {"image": bunch.images.astype("uint8").tolist(), "label": bunch.target.tolist()}
    return Dataset.from_dict(rows).with_transform(partial(_transform, size))


def batch(N: int, size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw N digits, without replacement up to N = 1797.

    Args:
        N: examples.
        size: height and width in pixels.
        seed: the same seed gives the same digits.

    Returns:
        Images, float32 [N, 3, size, size], normalised; labels, int64 [N], from 0 to 9.
    """
    dataset = digits(size)
    rng = np.random.default_rng(seed)
    rows = rng.choice(len(dataset), N, replace=len(dataset) < N)
    drawn = dataset[rows.tolist()]
    return torch.stack(drawn["image"]), torch.tensor(drawn["label"])


def _transform(size: int, rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Normalise, resize and repeat over three channels."""
    # [rows, 1, 8, 8], 0 to 16
    pixels = torch.tensor(rows["image"], dtype=torch.float32).unsqueeze(1)
    pixels = (pixels / 16 - GREY_MEAN) / GREY_STD
    pixels = functional.interpolate(pixels, (size, size), mode="bilinear", align_corners=False)
    return {**rows, "image": list(pixels.repeat(1, 3, 1, 1))}
