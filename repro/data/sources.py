"""Rows of a data set: from the Hugging Face Hub, or from files on this machine."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from repro.data.registry import DataSet, offline

TEST_EVERY = 5  # without a test set: one example (of each class) in so many is a test example
_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff"}
_TRAIN, _TEST = ("train", "training"), ("test", "validation", "val", "valid")


def open_rows(entry: DataSet, train: bool, stream: bool = False) -> tuple[Any, bool]:
    """Rows of the training or test set.

    Args:
        entry: an image set or pairs, on the Hub or on this machine.
        train: the training set, else the test set.
        stream: rows are read from front to back as they are downloaded.

    Returns:
        A `datasets.Dataset`, or `datasets.IterableDataset` with `stream`; and whether this is the
        whole data set because it has no test set of its own.

    Raises:
        ValueError: the data is not there. One line, which names what needs no network.
    """
    if entry.local:
        return _open_local(entry, train, stream)
    from datasets import concatenate_datasets, load_dataset

    with _explained(entry), _offline_without_a_network():
        parts: list[Any] = [
            load_dataset(
                entry.hub, entry.config, split=split, revision=entry.revision, streaming=stream
            )
            for split in (entry.train if train else (entry.test,))
        ]
        return (parts[0] if len(parts) == 1 else concatenate_datasets(parts)), False


@contextmanager
def _offline_without_a_network() -> Iterator[None]:
    """Put `datasets` into its offline mode if the Hub's name cannot be resolved.

    It would else try for half a minute and print a line for each attempt. In offline mode it takes
    what was downloaded before, or raises at once.
    """
    from datasets import config
    from huggingface_hub import constants

    if _is_reachable(str(urlsplit(constants.ENDPOINT).hostname)):
        yield
        return
    before = constants.HF_HUB_OFFLINE, config.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, config.HF_HUB_OFFLINE = before


def _is_reachable(host: str) -> bool:
    """Whether the name of a host can be resolved, or a proxy does that."""
    if getproxies():
        return True
    try:
        socket.getaddrinfo(host, 443)
    except OSError:
        return False
    return True


@contextmanager
def _explained(entry: DataSet) -> Iterator[None]:
    """Turn the errors of `datasets` into one line."""
    from datasets.exceptions import DatasetNotFoundError

    where = f"data={entry.name!r}: {entry.hub}"
    try:
        yield
    except DatasetNotFoundError as error:
        if "gated" in str(error):
            reason = f"is gated: accept its terms at {entry.page} and set HF_TOKEN"
        else:
            reason = "is not on the Hugging Face Hub, or needs a token: set HF_TOKEN"
        raise ValueError(f"{where} {reason}; {offline(entry.kind)}") from None
    except Exception as error:  # of the network, the Hub, the library: all come from outside
        reason = f"cannot be read ({type(error).__name__}: {_first_line(error)})"
        raise ValueError(f"{where} {reason}; {offline(entry.kind)}") from None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no reason given"])[0]


def _open_local(entry: DataSet, train: bool, stream: bool) -> tuple[Any, bool]:
    path = Path(entry.path).expanduser()
    if not path.exists():
        raise ValueError(
            f"data={entry.name!r}: {path} does not exist; check the path; {offline(entry.kind)}"
        )
    form = entry.name.partition(":")[0]
    if form == "arrow":
        return _open_arrow(entry, path, train)
    if form == "parquet":
        return _open_parquet(entry, path, train, stream)
    return _open_folder(entry, path, train)


def _open_arrow(entry: DataSet, path: Path, train: bool) -> tuple[Any, bool]:
    """A folder that `save_to_disk` wrote, or one file."""
    from datasets import Dataset, DatasetDict, load_from_disk

    try:
        if path.is_file():
            return Dataset.from_file(str(path)), True
        rows = load_from_disk(str(path))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"data={entry.name!r}: no Arrow data can be read there ({_first_line(error)}); give a "
            "folder that datasets' save_to_disk wrote, or an .arrow file"
        ) from None
    if not isinstance(rows, DatasetDict):
        return rows, True
    split, whole = _choose([str(name) for name in rows], train)
    if split is None:
        raise ValueError(
            f"data={entry.name!r}: it has the splits {', '.join(map(str, rows))}; one must be train"
        )
    return rows[split], whole


def _open_parquet(entry: DataSet, path: Path, train: bool, stream: bool) -> tuple[Any, bool]:
    """One file, or a folder of files whose names begin with train, test or validation."""
    from datasets import load_dataset

    files = [path] if path.is_file() else sorted(path.rglob("*.parquet"))
    if not files:
        raise ValueError(
            f"data={entry.name!r}: no .parquet file in {path}; give a file or a folder"
        )
    test = [file for file in files if file.name.startswith(_TEST)]
    training = [file for file in files if file.name.startswith(_TRAIN)] or [
        file for file in files if file not in test
    ]
    chosen = training if train or not test else test
    try:
        rows = load_dataset(
            "parquet", data_files=list(map(str, chosen)), split="train", streaming=stream
        )
    except Exception as error:  # `datasets` wraps what pyarrow says in an error of its own
        reason = _first_line(error.__cause__ if isinstance(error.__cause__, Exception) else error)
        raise ValueError(
            f"data={entry.name!r}: {chosen[0]} cannot be read as parquet ({reason})"
        ) from None
    return rows, not test


def _open_folder(entry: DataSet, path: Path, train: bool) -> tuple[Any, bool]:
    """Images in PATH/train/CLASS and PATH/test/CLASS, or all of them in PATH/CLASS."""
    from datasets import ClassLabel, Dataset, Features, Image

    folders = {folder.name: folder for folder in path.iterdir() if folder.is_dir()}
    training, _ = _choose(list(folders), train=True)
    chosen, whole = _choose(list(folders), train)
    reference = folders.get(training or "", path)
    root = folders.get(chosen or "", path)
    # The training set has all classes; a test set that lacks one still numbers them alike.
    names = _names_of_folders(reference)
    if len(names) < 2:
        raise ValueError(
            f"data={entry.name!r}: {reference} has {len(names)} class folders; there must be two "
            "or more, as PATH/CLASS/, or as PATH/train/CLASS/ and PATH/test/CLASS/"
        )
    for name in _names_of_folders(root):
        if name not in names:
            raise ValueError(
                f"data={entry.name!r}: class {name!r} of {root} is not in {reference}; add "
                "training images of it, or rename or remove the folder"
            )
    files, labels = [], []
    for label, name in enumerate(names):
        images = sorted(
            str(file) for file in (root / name).rglob("*") if file.suffix.lower() in _SUFFIXES
        )
        if not images and train:
            raise ValueError(
                f"data={entry.name!r}: class {name!r} has no image in {root / name}; add some, or "
                "remove the folder"
            )
        files += images
        labels += [label] * len(images)
    features = Features({"image": Image(decode=False), "label": ClassLabel(names=names)})
    return Dataset.from_dict({"image": files, "label": labels}, features), whole


def _names_of_folders(path: Path) -> list[str]:
    """The folders in a folder, sorted, without hidden ones."""
    return sorted(
        folder.name
        for folder in path.iterdir()
        if folder.is_dir() and not folder.name.startswith(".")
    )


def _choose(names: list[str], train: bool) -> tuple[str | None, bool]:
    """Which of the names is the set that is wanted, and whether there is no test set."""
    training = next((name for name in _TRAIN if name in names), None)
    test = next((name for name in _TEST if name in names), None)
    if training is None or test is None:
        return training, True
    return training if train else test, False
