import io
from typing import Any

import numpy as np
import pytest
import torch

from repro.data.classification import (
    ImageTask,
    count_classes,
    decode,
    evaluation_images,
    open_images,
)

NAMES = ["ant", "bee", "cow"]
MEAN = torch.tensor((0.485, 0.456, 0.406)).view(3, 1, 1)
STD = torch.tensor((0.229, 0.224, 0.225)).view(3, 1, 1)


def shaded(shade):
    from PIL import Image

    noise = np.random.default_rng(shade).integers(0, 30, (9, 12, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise + np.uint8(shade * 8)).save(buffer, "PNG")
    return {"bytes": buffer.getvalue(), "path": None}


def image_folder(path):
    for k in range(30):
        (path / NAMES[k // 10]).mkdir(parents=True, exist_ok=True)
        (path / NAMES[k // 10] / f"{k:02}.png").write_bytes(shaded(k)["bytes"])


def write_rows(path, labels):
    """Rows of images with labels, which may be texts or numbers."""
    from datasets import Dataset

    images = [shaded(k % 25) for k in range(len(labels))]
    Dataset.from_dict({"image": images, "label": labels}).to_parquet(path)


def all_targets(batches):
    return torch.cat([targets for _, targets in batches]).tolist()


def test_every_fifth_digit_of_each_class_is_a_test_digit():
    from sklearn.datasets import load_digits

    labels = load_digits().target  # pyright: ignore[reportAttributeAccessIssue]
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
    assert (inputs.shape, inputs.dtype) == ((100, 3, 8, 8), torch.float32)
    assert targets.bincount().tolist() == [10] * 10
    assert few.labels == {"data": "scikit-learn digits", "training images per class": "10"}
    changed: list[dict[str, Any]] = [{}, {"rotate": 90}, {"labels": "parity"}]
    plain, turned, odd = (
        evaluation_images(ImageTask(size=8, **changes), 20) for changes in changed
    )
    assert torch.equal(turned[0][0], plain[0][0].rot90(1, (2, 3)))
    assert torch.equal(turned[0][1], plain[0][1])
    assert all_targets(odd) == [label % 2 for label in all_targets(plain)]
    assert count_classes(ImageTask(labels="parity")) == 2
    assert count_classes(ImageTask(name="imagenet")) == 1000


@pytest.mark.parametrize("form", ["folder", "parquet"])
def test_images_on_this_machine_without_a_test_set_are_split(tmp_path, form, monkeypatch):
    if form == "folder":
        image_folder(tmp_path)
    else:
        write_rows(tmp_path / "rows.parquet", [k % 3 for k in range(30)])
    task = ImageTask(name=f"folder:{tmp_path}", size=8)
    inputs, targets = open_images(task, 24, seed=0).next()
    assert inputs.shape == (24, 3, 8, 8)
    assert targets.bincount().tolist() == [8, 8, 8]
    test = evaluation_images(task, 6)
    assert sorted(all_targets(test)) == [0, 0, 1, 1, 2, 2]
    assert count_classes(task) == 3
    pixels = decode(shaded(12 if form == "parquet" else 4), 8, "image")
    assert torch.equal(test[0][0][0], (pixels / 255 - MEAN) / STD)
    # Images that do not fit into memory are decoded again.
    monkeypatch.setattr("repro.data.classification._KEPT_BYTES", 0)
    assert torch.equal(open_images(task, 24, seed=0).next()[0], inputs)


def test_splits_are_kept_and_labels_may_be_text(tmp_path):
    for name, count in (("train", 12), ("test", 3)):
        write_rows(tmp_path / f"{name}-0.parquet", [NAMES[k % 3] for k in range(count)])
    task = ImageTask(name=f"folder:{tmp_path}", size=8)
    assert open_images(task, 12, 0).next()[1].bincount().tolist() == [4, 4, 4]
    assert all_targets(evaluation_images(task, 2)) == [0, 1, 2]


def refused(match, name, N=4, **arguments):
    with pytest.raises(ValueError, match=match) as error:
        open_images(ImageTask(name=name, size=8, **arguments), N, 0).next()
    assert "\n" not in str(error.value)


def test_bad_images_and_rows_are_one_line(tmp_path):
    from datasets import Dataset
    from PIL import Image

    refused("per_class=999: class '0' .* try per_class=143", "digits", per_class=999)
    refused("rotate = 45: .*0, 90", "digits", rotate=45)
    refused("are sentences; try digits", "toy")
    name = f"folder:{tmp_path / 'images'}"
    refused("does not exist.*try digits", name)
    image_folder(tmp_path / "images")
    Image.fromarray(np.full((9, 9), 40000, np.uint16)).save(tmp_path / "images/bee/13.png")
    refused(r"does not decode: a pixel has more than 8 bits \(mode I;16\)", name, N=24)
    (tmp_path / "images" / "bee" / "13.png").write_bytes(b"no image")
    refused(r"image 13 of folder:.*bee/13\.png\) does not decode: .*remove", name, N=24)
    rows = tmp_path / "rows"
    rows.mkdir()
    write_rows(rows / "train.parquet", [0, 1, 2])
    write_rows(rows / "test.parquet", [0, 1, 2, 3])
    with pytest.raises(ValueError, match=r"label of row 3 is 3, which is none of the 3 classes"):
        evaluation_images(ImageTask(name=f"folder:{rows}", size=8), 2)
    (rows / "test.parquet").unlink()
    Dataset.from_dict({"text": ["a"]}).to_parquet(rows / "train.parquet")
    refused("no column 'image'; it has text", f"folder:{rows}")
    (rows / "train.parquet").write_bytes(b"no parquet at all")
    refused("cannot be read", f"folder:{rows}")
