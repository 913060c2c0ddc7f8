import io
import json

import numpy as np
import pytest
import torch

from repro.data.classification import check_classes, count_classes, evaluation_images, open_images
from repro.data.image_rows import decode

NAMES = ["ant", "bee", "cow"]


def picture(shade, size=(12, 9)):
    from PIL import Image

    noise = np.random.default_rng(shade).integers(0, 30, (*size[::-1], 3), dtype=np.uint8)
    return Image.fromarray(noise + np.uint8(shade * 8))


def encoded(shade):
    buffer = io.BytesIO()
    picture(shade).save(buffer, "PNG")
    return buffer.getvalue()


def image_folder(path, per_class=10):
    for number, name in enumerate(NAMES):
        (path / name).mkdir(parents=True)
        for k in range(per_class):
            picture(number * per_class + k).save(path / name / f"{k:02}.png")
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


# Digits


def test_batches_of_digits_have_the_shapes_asked_for():
    batches = open_images("digits", 24, 16, seed=0)
    inputs, targets = batches.next()
    assert inputs.shape == (16, 3, 24, 24)
    assert inputs.dtype == torch.float32
    assert targets.shape == (16,)
    assert targets.dtype == torch.int64
    assert batches.labels == {"data": "scikit-learn digits"}


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


def test_digits_are_those_that_speed_is_measured_with():
    from repro.data import images

    measured, labels = images.batch(1797, 16, seed=0)
    ((inputs, targets),) = evaluation_images("digits", 16, 355)
    distance = torch.cdist(inputs.flatten(1), measured.flatten(1), p=float("inf"))
    nearest = distance.min(1)
    # 8-bit pixels are off by half a level.
    assert nearest.values.max() <= 0.5 / 255 / images.GREY_STD + 1e-5
    assert torch.equal(labels[nearest.indices], targets)


def test_the_tasks_of_table_4():
    few = open_images("digits", 8, 50, seed=0, per_class=10, classes=range(5, 10))
    _, targets = few.next()
    assert targets.bincount().tolist() == [10] * 5
    assert few.labels["training images per class"] == "10"

    plain, turned = (
        evaluation_images("digits", 8, 20, classes=range(5, 10), rotate=degrees)
        for degrees in (0, 90)
    )
    assert torch.equal(turned[0][0], plain[0][0].rot90(1, (2, 3)))
    assert torch.equal(turned[0][1], plain[0][1])

    classes = all_targets(plain)
    odd = all_targets(evaluation_images("digits", 8, 20, classes=range(5, 10), labels="parity"))
    assert odd == [(label + 5) % 2 for label in classes]

    assert count_classes("digits", range(5)) == 5
    assert count_classes("digits", range(5, 10), labels="parity") == 2
    assert count_classes("imagenet") == 1000


def test_order_after_restore_is_the_same_with_augmentation():
    make = lambda: open_images("digits", 16, 100, 0, augment="flip")  # noqa: E731
    batches = make()
    for _ in range(16):  # into the second epoch
        batches.next()
    state = json.loads(json.dumps(batches.state()))
    expected = batches.next()
    resumed = make()
    resumed.restore(state)
    assert all(torch.equal(a, b) for a, b in zip(resumed.next(), expected, strict=True))


# Images on this machine


def test_a_folder_without_test_images_is_split(tmp_path):
    name = f"folder:{image_folder(tmp_path / 'images')}"
    inputs, targets = open_images(name, 8, 24, seed=0).next()
    assert inputs.shape == (24, 3, 8, 8)
    assert targets.bincount().tolist() == [8, 8, 8]
    assert all_targets(evaluation_images(name, 8, 4)) == [0, 0, 1, 1, 2, 2]
    assert count_classes(name) == 3


def test_a_folder_with_test_images_keeps_them(tmp_path):
    image_folder(tmp_path / "train")
    (tmp_path / "val" / "cow").mkdir(parents=True)
    picture(20).save(tmp_path / "val" / "cow" / "only.png")
    name = f"folder:{tmp_path}"
    assert open_images(name, 8, 30, 0).next()[1].bincount().tolist() == [10, 10, 10]
    assert all_targets(evaluation_images(name, 8, 4)) == [2]


def test_parquet_gives_what_a_folder_gives(tmp_path):
    rows = image_rows()
    rows.to_parquet(tmp_path / "rows.parquet")
    name = f"folder:{tmp_path}"
    batches = open_images(name, 8, 24, seed=0)
    assert batches.next()[1].bincount().tolist() == [8, 8, 8]
    test = evaluation_images(name, 8, 6)
    assert all_targets(test) == [rows[k]["label"] for k in (12, 13, 14, 27, 28, 29)]
    assert torch.equal(test[0][0][0], (pixels(12) / 255 - MEAN) / STD)


MEAN = torch.tensor((0.485, 0.456, 0.406)).view(3, 1, 1)
STD = torch.tensor((0.229, 0.224, 0.225)).view(3, 1, 1)


def pixels(shade):
    return decode(encoded(shade), 8, "image")


def test_splits_of_parquet_are_kept_and_labels_may_be_text(tmp_path):
    from datasets import Value

    for name, count in (("train", 12), ("test", 3)):
        rows = image_rows(count).cast_column("label", Value("string"))
        rows.to_parquet(tmp_path / f"{name}-0.parquet")
    name = f"folder:{tmp_path}"
    assert open_images(name, 8, 12, 0).next()[1].bincount().tolist() == [4, 4, 4]
    assert all_targets(evaluation_images(name, 8, 2)) == [0, 1, 2]


def test_images_that_do_not_fit_into_memory_are_decoded_again(tmp_path, monkeypatch):
    name = f"folder:{image_folder(tmp_path)}"
    kept = open_images(name, 8, 5, 0).next()
    monkeypatch.setattr("repro.data.classification._KEPT_BYTES", 0)
    again = open_images(name, 8, 5, 0).next()
    assert all(torch.equal(a, b) for a, b in zip(kept, again, strict=True))


# Bad input


def refused(match, name, size=8, N=4, **arguments):
    with pytest.raises(ValueError, match=match) as error:
        open_images(name, size, N, 0, **arguments).next()
    assert "\n" not in str(error.value)
    return str(error.value)


def test_an_image_that_does_not_decode_names_its_file(tmp_path):
    image_folder(tmp_path)
    broken = tmp_path / "bee" / "03.png"
    broken.write_bytes(broken.read_bytes()[:60])
    refused(
        r"image 13 of folder:.*bee/03\.png\) does not decode: .*remove", f"folder:{tmp_path}", N=24
    )
    broken.write_bytes(b"no image")
    refused(r"bee/03\.png\) does not decode", f"folder:{tmp_path}", N=24)


def test_a_missing_folder_names_the_offline_default(tmp_path):
    refused("does not exist; .*--data digits", f"folder:{tmp_path / 'none'}")
    refused("doesn't contain any data files.*--data digits", f"folder:{tmp_path}")


def test_labels_out_of_range(tmp_path):
    image_rows(6, names=None).to_parquet(tmp_path / "train.parquet")
    image_rows(6, label=lambda k: k, names=None).to_parquet(tmp_path / "test.parquet")
    with pytest.raises(ValueError, match=r"label of row 3 is 3; allowed are 0 to 2"):
        evaluation_images(f"folder:{tmp_path}", 8, 2)
    image_rows(6, label=lambda k: k - 1, names=None).to_parquet(tmp_path / "train.parquet")
    refused("label -1 is out of range", f"folder:{tmp_path}")


def test_rows_without_images_or_that_are_no_rows(tmp_path):
    from datasets import Dataset

    path = tmp_path / "rows.parquet"
    Dataset.from_dict({"text": ["a"]}).to_parquet(path)
    refused("no column 'image'; it has text", f"folder:{tmp_path}")
    Dataset.from_dict({"image": [b"a"], "label": [None]}).to_parquet(path)
    refused("no row has a label", f"folder:{tmp_path}")
    path.write_bytes(b"no parquet at all")
    refused("cannot be read", f"folder:{tmp_path}")


def test_bad_arguments():
    refused("digits has 10 classes; allowed are 0 to 9", "digits", classes=range(8, 12))
    refused("allowed are 0 to 9", "digits", classes=range(0))
    with pytest.raises(ValueError, match="allowed are 0 to 9"):
        count_classes("cifar10", classes=range(8, 12))
    with pytest.raises(ValueError, match="N=0: must be a positive"):
        evaluation_images("digits", 8, 0)
    refused("per_class=999: class '0' .* try per_class=143", "digits", per_class=999)
    refused("rotate=45: allowed are 0, 90", "digits", rotate=45)
    refused("augment='blur': allowed are none, flip", "digits", augment="blur")
    refused("labels='even'", "digits", labels="even")
    refused("are sentences, not images; try digits", "toy")


@pytest.mark.parametrize(
    ("kind", "text", "match"),
    [
        (RuntimeError, "Dataset scripts are no longer supported", "no longer supported.*digits"),
        (ConnectionError, "Couldn't reach it\nat all", "cannot be read .*--data digits"),
        ("gated", "Dataset 'x' is a gated dataset on the Hub", "is gated: accept .* HF_TOKEN"),
        ("gated", "Dataset 'x' doesn't exist on the Hub", "is not on the Hugging Face Hub"),
        (ValueError, "BuilderConfig 'x' not found", "BuilderConfig 'x' not found.*digits"),
    ],
)
def test_what_the_hub_answers_is_one_line(monkeypatch, kind, text, match):
    import datasets
    from datasets.exceptions import DatasetNotFoundError

    def no_network(*_arguments, **_keywords):
        raise (DatasetNotFoundError if kind == "gated" else kind)(text)

    monkeypatch.setattr(datasets, "load_dataset", no_network)
    refused(match, "cifar10")
    assert "cifar10" in refused(match, "cifar10")


def test_a_model_needs_an_output_for_each_class():
    check_classes(10, 5)
    with pytest.raises(ValueError, match=r"num_classes=2: the data has 5 classes.*num_classes=5"):
        check_classes(2, 5)
    with pytest.raises(ValueError, match="num_classes=None: the data has 5 classes"):
        check_classes(None, 5)


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
