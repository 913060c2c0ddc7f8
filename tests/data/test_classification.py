import io
import json

import numpy as np
import pytest
import torch

from repro.data.classification import count_classes, evaluation_images, open_images
from repro.data.image_rows import decode

NAMES = ["ant", "bee", "cow"]
MEAN = torch.tensor((0.485, 0.456, 0.406)).view(3, 1, 1)
STD = torch.tensor((0.229, 0.224, 0.225)).view(3, 1, 1)


def encoded(shade):
    from PIL import Image

    noise = np.random.default_rng(shade).integers(0, 30, (9, 12, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise + np.uint8(shade * 8)).save(buffer, "PNG")
    return buffer.getvalue()


def image_folder(path, per_class=10):
    for number, name in enumerate(NAMES):
        (path / name).mkdir(parents=True)
        for k in range(per_class):
            (path / name / f"{k:02}.png").write_bytes(encoded(number * per_class + k))
    return path


def image_rows(count=30, label=lambda k: k % 3, names=NAMES):
    from datasets import ClassLabel, Dataset, Features, Image, Value

    kind = ClassLabel(names=names) if names else Value("int64")
    rows = {
        "image": [{"bytes": encoded(k % 25), "path": f"{k}.png"} for k in range(count)],
        "label": [label(k) for k in range(count)],
    }
    return Dataset.from_dict(rows, Features({"image": Image(), "label": kind}))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    """`datasets` keeps what it read in a cache; give each test one of its own."""
    from datasets import config

    monkeypatch.setattr(config, "HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("cache")))


def all_targets(batches):
    return torch.cat([targets for _, targets in batches]).tolist()


def test_every_fifth_digit_of_each_class_is_a_test_digit():
    from sklearn.datasets import load_digits

    labels = load_digits().target  # pyright: ignore[reportAttributeAccessIssue]
    test = evaluation_images("digits", 8, 100)
    train = evaluation_images("digits", 8, 100, train=True)
    for digit in range(10):
        count = int((labels == digit).sum())
        assert all_targets(test).count(digit) == count // 5
        assert all_targets(train).count(digit) == count - count // 5
    seen = [{tuple(x.flatten().tolist()) for xs, _ in each for x in xs} for each in (test, train)]
    assert not seen[0] & seen[1]


def test_the_tasks_of_table_4():
    few = open_images("digits", 8, 50, seed=0, per_class=10, classes=range(5, 10))
    inputs, targets = few.next()
    assert (inputs.shape, inputs.dtype) == ((50, 3, 8, 8), torch.float32)
    assert targets.bincount().tolist() == [10] * 5
    assert few.labels == {
        "data": "scikit-learn digits",
        "classes": "5-9",
        "training images per class": "10",
    }
    plain, turned = (
        evaluation_images("digits", 8, 20, classes=range(5, 10), rotate=degrees)
        for degrees in (0, 90)
    )
    assert torch.equal(turned[0][0], plain[0][0].rot90(1, (2, 3)))
    assert torch.equal(turned[0][1], plain[0][1])
    odd = all_targets(evaluation_images("digits", 8, 20, classes=range(5, 10), labels="parity"))
    assert odd == [(label + 5) % 2 for label in all_targets(plain)]
    assert count_classes("digits", range(5)) == 5
    assert count_classes("digits", range(5, 10), labels="parity") == 2
    assert count_classes("imagenet") == 1000


def test_order_after_restore_is_the_same_with_augmentation():
    def make():
        return open_images("digits", 16, 100, 0, augment="flip")

    batches = make()
    for _ in range(16):  # into the second epoch
        batches.next()
    state = json.loads(json.dumps(batches.state()))
    expected = batches.next()
    resumed = make()
    resumed.restore(state)
    assert all(torch.equal(a, b) for a, b in zip(resumed.next(), expected, strict=True))


@pytest.mark.parametrize("form", ["folder", "parquet"])
def test_images_on_this_machine_without_a_test_set_are_split(tmp_path, form, monkeypatch):
    if form == "folder":
        image_folder(tmp_path)
    else:
        image_rows().to_parquet(tmp_path / "rows.parquet")
    name = f"folder:{tmp_path}"
    inputs, targets = open_images(name, 8, 24, seed=0).next()
    assert inputs.shape == (24, 3, 8, 8)
    assert targets.bincount().tolist() == [8, 8, 8]
    test = evaluation_images(name, 8, 6)
    assert sorted(all_targets(test)) == [0, 0, 1, 1, 2, 2]
    assert count_classes(name) == 3
    first = 12 if form == "parquet" else 4
    pixels = decode(encoded(first), 8, "image")
    assert torch.equal(test[0][0][0], (pixels / 255 - MEAN) / STD)
    # Images that do not fit into memory are decoded again.
    monkeypatch.setattr("repro.data.classification._KEPT_BYTES", 0)
    assert torch.equal(open_images(name, 8, 24, seed=0).next()[0], inputs)


def test_splits_are_kept_and_labels_may_be_text(tmp_path):
    from datasets import Value

    for name, count in (("train", 12), ("test", 3)):
        rows = image_rows(count).cast_column("label", Value("string"))
        rows.to_parquet(tmp_path / f"{name}-0.parquet")
    name = f"folder:{tmp_path}"
    assert open_images(name, 8, 12, 0).next()[1].bincount().tolist() == [4, 4, 4]
    assert all_targets(evaluation_images(name, 8, 2)) == [0, 1, 2]


def test_pixels_are_resized_cut_to_the_middle_and_become_rgb():
    from PIL import Image

    def stored(image):
        buffer = io.BytesIO()
        image.save(buffer, "PNG")
        return buffer.getvalue()

    wide = Image.new("RGB", (40, 10), (255, 0, 0))
    wide.paste((0, 0, 255), (15, 0, 25, 10))
    square = decode(stored(wide), 10, "image")
    assert (square == torch.tensor([0, 0, 255], dtype=torch.uint8).view(3, 1, 1)).all()
    for mode in ("L", "P", "RGBA", "1"):
        value = {"bytes": stored(Image.new(mode, (6, 4))), "path": None}
        assert decode(value, 4, "image").shape == (3, 4, 4)


def refused(match, name, size=8, N=4, **arguments):
    with pytest.raises(ValueError, match=match) as error:
        open_images(name, size, N, 0, **arguments).next()
    assert "\n" not in str(error.value)


def test_bad_images_and_rows_are_one_line(tmp_path):
    from datasets import Dataset

    name = f"folder:{tmp_path / 'images'}"
    refused("does not exist; .*--data digits", name)
    image_folder(tmp_path / "images")
    (tmp_path / "images" / "bee" / "03.png").write_bytes(b"no image")
    refused(r"image 13 of folder:.*bee/03\.png\) does not decode: .*remove", name, N=24)
    rows = tmp_path / "rows"
    rows.mkdir()
    image_rows(6, names=None).to_parquet(rows / "train.parquet")
    image_rows(6, label=lambda k: k, names=None).to_parquet(rows / "test.parquet")
    with pytest.raises(ValueError, match=r"label of row 3 is 3; allowed are 0 to 2"):
        evaluation_images(f"folder:{rows}", 8, 2)
    (rows / "test.parquet").unlink()
    Dataset.from_dict({"text": ["a"]}).to_parquet(rows / "train.parquet")
    refused("no column 'image'; it has text", f"folder:{rows}")
    Dataset.from_dict({"image": [b"a"], "label": [None]}).to_parquet(rows / "train.parquet")
    refused("no row has a label", f"folder:{rows}")
    (rows / "train.parquet").write_bytes(b"no parquet at all")
    refused("cannot be read", f"folder:{rows}")


@pytest.mark.parametrize(
    ("match", "name", "arguments"),
    [
        ("digits has 10 classes; allowed are 0 to 9", "digits", {"classes": range(8, 12)}),
        ("per_class=999: class '0' .* try per_class=143", "digits", {"per_class": 999}),
        ("rotate=45: allowed are 0, 90", "digits", {"rotate": 45}),
        ("augment='blur': allowed are none, flip", "digits", {"augment": "blur"}),
        ("labels='even'", "digits", {"labels": "even"}),
        ("N=0: must be a positive", "digits", {"N": 0}),
        ("are sentences, not images; try digits", "toy", {}),
    ],
)
def test_bad_arguments(match, name, arguments):
    refused(match, name, **arguments)


def test_what_is_asked_of_the_hub(monkeypatch):
    import datasets

    asked = []

    def load_dataset(*arguments, **keywords):
        asked.append((*arguments, keywords))
        return image_rows().rename_column("image", "img")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    batches = open_images("cifar10", 8, 4, 0)
    assert batches.labels == {"data": "CIFAR-10"}
    batches.next()
    revision = "0b2714987fa478483af9968de7c934580d0bb9a2"
    split = {"split": "train", "revision": revision}
    assert asked == [("uoft-cs/cifar10", "plain_text", split)]
