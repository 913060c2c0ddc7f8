import io
from typing import Any

import numpy as np
import pytest
import torch

from repro.data.classification import ImageTask, decode, evaluation_images, open_images
from repro.data.images import digits

MEAN = torch.tensor((0.485, 0.456, 0.406)).view(3, 1, 1)
STD = torch.tensor((0.229, 0.224, 0.225)).view(3, 1, 1)


def shaded(shade):
    """An image as `datasets` stores it."""
    from PIL import Image

    noise = np.random.default_rng(shade).integers(0, 30, (9, 12, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise + np.uint8(shade * 8)).save(buffer, "PNG")
    return {"bytes": buffer.getvalue(), "path": None}


def rows(**columns):
    from datasets import ClassLabel, Dataset

    data = Dataset.from_dict(columns)
    return data.cast_column("label", ClassLabel(3)) if "label" in columns else data


def all_targets(batches):
    return torch.cat([targets for _, targets in batches]).tolist()


def test_every_fifth_digit_of_each_class_is_a_test_digit():
    from sklearn.datasets import load_digits

    known: Any = load_digits()
    labels = known.target
    images, ours = digits()
    assert (images[:, 0].numpy() == known.images).all()
    assert (ours.numpy() == labels).all()
    task = ImageTask(size=8)
    batches = evaluation_images(task, 100)
    train, train_targets = open_images(task, 1442, 0).next()
    for digit in range(10):
        count = int((labels == digit).sum())
        assert all_targets(batches).count(digit) == count // 5
        assert train_targets.tolist().count(digit) == count - count // 5
    seen = [{tuple(x.flatten().tolist()) for x in xs} for xs in (train, *(b[0] for b in batches))]
    assert not seen[0] & set.union(*seen[1:])


def test_the_tasks_of_table_4():
    few = open_images(ImageTask(size=8, per_class=10), 100, seed=0)
    inputs, targets = few.next()
    assert inputs.shape == (100, 3, 8, 8)
    assert targets.bincount().tolist() == [10] * 10
    assert few.labels == {"data": "scikit-learn digits", "training images per class": "10"}
    changed: list[dict[str, Any]] = [{}, {"rotate": 90}, {"labels": "parity"}]
    plain, turned, odd = (
        evaluation_images(ImageTask(size=8, **changes), 20) for changes in changed
    )
    assert torch.equal(turned[0][0], plain[0][0].rot90(1, (2, 3)))
    assert torch.equal(turned[0][1], plain[0][1])
    assert all_targets(odd) == [label % 2 for label in all_targets(plain)]


def test_images_of_the_hub_are_read_by_split_and_the_middle_is_cut_out(hub, monkeypatch):
    labels = [k % 3 for k in range(30)]
    images = [shaded(k % 25) for k in range(30)]
    hub("pets", train=rows(image=images, label=labels), test=rows(image=images[:3], label=[2] * 3))
    task = ImageTask(name="pets", size=8, validation=True)
    inputs, targets = open_images(task, 24, seed=0).next()
    assert targets.bincount().tolist() == [8, 8, 8]
    assert all_targets(evaluation_images(task, 4, "validation")) == [0, 1, 2] * 2
    test = evaluation_images(task, 2)
    assert all_targets(test) == [2, 2, 2]
    assert torch.equal(test[0][0][0], (decode(images[0], 8, "image") / 255 - MEAN) / STD)
    # Images that do not fit into memory are decoded again.
    monkeypatch.setattr("repro.data.classification._KEPT_BYTES", 0)
    assert torch.equal(open_images(task, 24, seed=0).next()[0], inputs)


def test_labels_of_the_hub_may_be_names(hub):
    names = ["wren", "crow", "dove"]
    images = [shaded(k) for k in range(3)]
    hub("birdsnap", train=rows(image=images, common=names), test=rows(image=images, common=names))
    assert all_targets(evaluation_images(ImageTask(name="birdsnap", size=8), 3)) == [2, 0, 1]


def refused(match, name, **arguments):
    with pytest.raises(ValueError, match=match) as error:
        open_images(ImageTask(name=name, size=8, **arguments), 4, 0).next()
    assert "\n" not in str(error.value)


def test_data_that_cannot_be_read_are_one_line(hub, tmp_path, monkeypatch):
    refused("per_class=999: class '0' .* try per_class=143", "digits", per_class=999)
    refused("rotate = 45: .*0, 90", "digits", rotate=45)
    refused("are sentences; try digits", "toy")
    broken = [{"bytes": b"no image", "path": None}] * 4
    hub("pets", train=rows(image=broken, label=[0] * 4))
    refused(r"^image \d of pets cannot be decoded: ", "pets")
    (tmp_path / "pets/train.parquet").write_bytes(b"no parquet at all")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "another"))
    refused("^data='pets': .* cannot be read .*HF_HUB_OFFLINE=1 .* or try digits$", "pets")
