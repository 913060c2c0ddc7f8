from typing import Any

import torch

from repro.data import images


def test_same_seed_same_digits_another_seed_others():
    (a, x), (b, y), (c, _) = (images.batch(16, 32, seed) for seed in (3, 3, 4))
    assert torch.equal(a, b)
    assert torch.equal(x, y)
    assert not torch.equal(a, c)


def test_digits_are_the_real_ones_normalised():
    from sklearn.datasets import load_digits

    bunch: Any = load_digits()
    pixels, labels = images.batch(1797, 8, seed=0)
    assert labels.bincount().tolist() == torch.tensor(bunch.target).bincount().tolist()
    assert abs(pixels.mean()) < 0.01
    assert abs(pixels.std() - 1) < 0.01
    assert torch.equal(pixels[:, 0], pixels[:, 2])
    grey = {
        tuple(image)
        for image in (pixels[:, 0] * images.GREY_STD + images.GREY_MEAN)
        .mul(16)
        .round()
        .flatten(1)
        .tolist()
    }
    assert grey == {tuple(image.ravel()) for image in bunch.images}
