"""Fixtures: a results folder with known numbers, and an empty one."""

from pathlib import Path

import pytest
from recorded import experiment, fill

from repro.harness.record import load
from repro.harness.results import Results


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("results")
    fill(path, experiment())
    return path


@pytest.fixture(scope="session")
def results(folder: Path) -> Results:
    return load(folder)


@pytest.fixture(scope="session")
def nothing(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return load(tmp_path_factory.mktemp("empty"))
