from typing import Any

import torch

from repro.data.classification import ImageTask, open_images


def test_augmentation_depends_on_seed_epoch_and_example_only():
    task = ImageTask(size=16, per_class=10, augment="cutout")

    def epoch_of_50(seed=0, replicas=1):
        parts = [open_images(task, 10, seed, replica, replicas) for replica in range(replicas)]
        return torch.cat([part.next()[0] for _ in range(5) for part in parts])

    whole = epoch_of_50()
    assert torch.equal(whole, epoch_of_50(replicas=2))
    assert not torch.equal(whole, epoch_of_50(seed=1))
    batches = open_images(task, 50, 0)
    first, second = batches.next()[0], batches.next()[0]
    images = [{tuple(x.flatten().tolist()) for x in epoch} for epoch in (first, second)]
    assert len(images[0] - images[1]) > 5


def test_flip_and_cutout_do_what_they_say():
    names: Any = ("none", "flip", "cutout")
    tasks = [ImageTask(size=16, augment=augment) for augment in names]
    plain, flipped, cut = (open_images(task, 64, 0).next()[0] for task in tasks)
    mirrored = [torch.equal(x, y.flip(2)) for x, y in zip(plain, flipped, strict=True)]
    same = [torch.equal(x, y) for x, y in zip(plain, flipped, strict=True)]
    assert all(a or b for a, b in zip(mirrored, same, strict=True))
    assert 16 < sum(mirrored) < 48
    # A square of 8 x 8 of 16 x 16 is grey, which is 0.
    assert all((image == 0).all(0).sum() == 64 for image in cut)
