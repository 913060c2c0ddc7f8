import pytest

from experiments.table4.runs import TRANSFER
from repro.data.registry import DATA, find
from repro.paper import numbers

PAPER = {"ImageNet-2012": "imagenet", **TRANSFER}


def test_sizes_and_classes_are_those_of_the_paper():
    for row in numbers.table4():
        entry = DATA[PAPER[row.dataset]]
        # The pets have 3,669 test images; the paper prints 3,369.
        test = 3_669 if entry.name == "pets" else row.test
        assert (*entry.examples, entry.classes) == (row.train, test, row.classes)


def test_names_choose_languages():
    assert find("opus100:de-en").config == find("opus100:en-de").config == "de-en"
    assert find("opus100:gl-en").config == "en-gl"
    assert find("folder:some/where").folder == "some/where"


@pytest.mark.parametrize(
    ("name", "message"),
    [("cifra10", "did you mean 'cifar10'"), ("folder:", "allowed are digits.* and folder:PATH")],
)
def test_a_wrong_name_is_one_line(name, message):
    with pytest.raises(ValueError, match=f"^data={name!r}.*{message}.*$"):
        find(name)


@pytest.mark.network
@pytest.mark.parametrize("name", [*DATA, "opus100:de-en"])
def test_the_hub_has_the_columns_that_are_read(name):
    from datasets import load_dataset

    entry = find(name)
    if not entry.hub or entry.name in ("opus100", "imagenet"):
        pytest.skip("not on the Hub, needs a language, or needs a token")
    for split in (entry.train, entry.test):
        rows = load_dataset(
            entry.hub, entry.config, split=split, revision=entry.revision, streaming=True
        )
        row = next(iter(rows))
        if entry.kind == "images":
            assert set(entry.columns) <= set(row)
        else:
            assert set(row["translation"]) == {"de", "en"}
