"""Rows of a data set, by `datasets`: from the Hugging Face Hub, or from a folder here."""

import socket
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit
from urllib.request import getproxies

import numpy as np

from repro.data.registry import DataSet

Part = Literal["train", "validation", "test"]

# One example (of each class) in so many is a test example where there is no test set, and one a
# validation example where these are asked for.
TEST_EVERY = 5


def open_rows(entry: DataSet, train: bool) -> tuple[Any, bool]:
    """Rows of the training or test set, and whether they are all because it has no test set.

    A one-line ValueError, which names what needs no network, says that the data is not there.
    """
    from datasets import disable_progress_bars, load_dataset

    try:
        if entry.hub:
            _go_offline_without_a_network()
            split, revision = entry.train if train else entry.test, entry.revision
            return load_dataset(entry.hub, entry.config, split=split, revision=revision), False
        folder = Path(entry.folder).expanduser()
        if not folder.is_dir():
            raise FileNotFoundError(f"the folder {folder} does not exist")
        disable_progress_bars()  # they call it a download
        splits: Any = load_dataset(str(folder))
        test = next((splits[name] for name in ("test", "validation") if name in splits), None)
        return (splits["train"] if train or test is None else test), test is None
    except Exception as error:  # of the network, the Hub or the library
        first_line = (str(error).strip().splitlines() or ["no reason given"])[0]
        terms = f"; accept its terms at {entry.page} and set HF_TOKEN" if entry.gated else ""
        raise ValueError(
            f"data={entry.name!r}: {entry.hub or entry.folder} cannot be read "
            f"({type(error).__name__}: {first_line}){terms}; without a network try "
            f"{'digits' if entry.kind == 'images' else 'toy:alfa'}"
        ) from None


def is_in(part: Part, count: int, whole: bool, validation: bool) -> np.ndarray:
    """Whether each of `count` examples belongs to a part, bool [count].

    Args:
        whole: the examples are a whole data set without a test set of its own, see `open_rows`.
        validation: whether training leaves out what it is validated with.
    """
    place = np.arange(count) % TEST_EVERY
    is_test = (place == TEST_EVERY - 1) if whole else np.full(count, part == "test")
    is_validation = (place == TEST_EVERY - 2) & ~is_test
    if part == "test":
        return is_test
    return is_validation if part == "validation" else ~is_test & ~(is_validation & validation)


def _go_offline_without_a_network() -> None:
    """Put `datasets` into its offline mode for good if the Hub's name cannot be resolved.

    It would else try for half a minute and print a line for each attempt. In offline mode it takes
    what was downloaded before, or raises at once.
    """
    from datasets import config
    from huggingface_hub import constants

    try:
        if not getproxies():
            socket.getaddrinfo(str(urlsplit(constants.ENDPOINT).hostname), 443)
    except OSError:
        constants.HF_HUB_OFFLINE = config.HF_HUB_OFFLINE = True
