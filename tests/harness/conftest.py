"""Fixtures: a finished sweep to be damaged, and a home without an account at W&B."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from crew import Crew, measure
from shown import SWEEP, seen

from repro.harness import wandb_mirror
from repro.io import files


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A finished sweep; nothing here has to survive a loss of power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files.os, "fsync", lambda _: None)
        results = tmp_path_factory.mktemp("recorded")
        assert measure(results, Crew(), SWEEP) == 0
        yield results


@pytest.fixture(scope="module")
def whole(recorded: Path) -> Any:
    """What a report of it shows."""
    return seen(recorded)


@pytest.fixture
def results(recorded: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(recorded, tmp_path / "results")


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without W&B credentials, and no memory of earlier trouble."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in [name for name in os.environ if name.startswith("WANDB_")] + ["NETRC"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(wandb_mirror, "_said", set())
    monkeypatch.setattr(wandb_mirror, "_refused", set())
    return home
