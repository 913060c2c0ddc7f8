"""Rows of a data set on the Hugging Face Hub, and the rule that divides a data set into parts."""

from typing import Any, Literal

import numpy as np

from repro.data.registry import DataSet

Part = Literal["train", "validation", "test"]

# One in so many examples is a test example if there is no test set, and one in so many is a
# validation example if these are wanted.
_EVERY = 5


def open_rows(entry: DataSet, train: bool) -> Any:
    """Rows of the training set or of the test set.

    If they cannot be read, a one-line ValueError has the reason, and data that needs no network.
    """
    from datasets import load_dataset

    split = entry.train if train else entry.test
    try:
        return load_dataset(entry.hub, entry.config, split=split, revision=entry.revision)
    except Exception as error:  # of the network, the Hub or the library
        first_line = (str(error).strip().splitlines() or ["no reason given"])[0]
        page = f"https://huggingface.co/datasets/{entry.hub}"
        terms = f"; accept its terms at {page} and set HF_TOKEN" if entry.gated else ""
        raise ValueError(
            f"data={entry.name!r}: {entry.hub} cannot be read ({type(error).__name__}: "
            f"{first_line}){terms}; without a network set HF_HUB_OFFLINE=1 for what was downloaded "
            f"before, or try {'digits' if entry.kind == 'images' else 'toy:alfa'}"
        ) from None


def is_in(part: Part, count: int, whole: bool, validation: bool) -> np.ndarray:
    """Whether each of `count` examples belongs to a part, bool [count].

    Args:
        whole: whether the examples are a whole data set, which has no test set of its own.
        validation: whether the training part leaves out the validation part.
    """
    place = np.arange(count) % _EVERY
    is_test = (place == _EVERY - 1) if whole else np.full(count, part == "test")
    is_validation = (place == _EVERY - 2) & ~is_test
    if part == "test":
        return is_test
    return is_validation if part == "validation" else ~is_test & ~(is_validation & validation)
