import pytest

from repro.data.registry import DATA, find
from repro.experiments.table4.runs import TRANSFER
from repro.paper import numbers

PAPER = {"ImageNet-2012": "imagenet", **TRANSFER}


def test_sizes_and_classes_are_those_of_the_paper():
    for row in numbers.table4():
        entry = DATA[PAPER[row.dataset]]
        # The pets have 3,669 test images; the paper prints 3,369.
        test = 3_669 if entry.name == "pets" else row.test
        assert (*entry.examples, entry.classes) == (row.train, test, row.classes)


def test_a_wrong_name_is_one_line():
    with pytest.raises(ValueError, match=r"^data='cifra10': .*digits.* did you mean 'cifar10'.*$"):
        find("cifra10")
