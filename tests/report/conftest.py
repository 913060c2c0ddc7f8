"""Fixtures: a results folder with known numbers, an empty one, and a browser."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recorded import experiment, fill, fill_sweep

from repro.harness.results import Results, load
from repro.report.compare import of_exhibits


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("results")
    fill(path, experiment())
    return path


@pytest.fixture(scope="session")
def results(folder: Path) -> Results:
    return load(folder)


@pytest.fixture(scope="session")
def own_sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sweep")
    fill_sweep(path)
    return path


@pytest.fixture(scope="session")
def whole_reference() -> Results:
    return load(Path(__file__).parents[2] / "results/reference")


@pytest.fixture(scope="session")
def reference(whole_reference: Results) -> Results:
    """What the exhibits of `plots/reference` are made from."""
    return of_exhibits(whole_reference)


@pytest.fixture(scope="session")
def nothing(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return load(tmp_path_factory.mktemp("empty"))


@pytest.fixture(scope="session")
def modelled(reference: Results) -> Results:
    """Table 2 alone, measured small, simulated and emulated."""
    return replace(reference, runs=reference.by_experiment["table2"])


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    found = map(shutil.which, ("chromium", "chromium-browser", "chrome"))
    chromium = next(filter(None, found), None)
    if chromium is None:
        pytest.skip("needs chromium on the PATH")
    with api.sync_playwright() as playwright:
        own = {"HOME": tempfile.gettempdir(), "XDG_CONFIG_HOME": "", "XDG_CACHE_HOME": ""}
        started = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox"], env={**os.environ, **own}
        )
        yield started
        started.close()
