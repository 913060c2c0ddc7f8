"""Tests that need what this machine lacks skip themselves, with the reason."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from repro.io.temporary import own_folder


@pytest.fixture(scope="session", autouse=True)
def own_temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where tests and what they start put temporary files; nothing of ours is left there.

    A process that a test has killed leaves its folder, which the next one removes.
    """
    folder = tmp_path_factory.mktemp("t")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", str(folder))
        yield folder
        with own_folder():
            pass
    # The server that processes are forked from keeps one until this program ends.
    left = [path.name.split("-")[2] for path in folder.glob("gpipe-*")]
    assert left in ([], [str(os.getpid())])


@pytest.fixture
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder of one test, so that it finds no folder of another."""
    folder = tmp_path_factory.mktemp("t")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if reason := _missing(item):
            item.add_marker(pytest.mark.skip(reason=reason))


def _missing(item: pytest.Item) -> str:
    """What the test's markers ask for and is not here; empty when it can run."""
    needed = (
        2 if item.get_closest_marker("multigpu") else 1 if item.get_closest_marker("gpu") else 0
    )
    if needed:
        import torch  # only where a test asks: many need no torch

        if torch.cuda.device_count() < needed:
            return (
                f"needs {needed} CUDA device{'s' * (needed > 1)}, found {torch.cuda.device_count()}"
            )
    return ""
