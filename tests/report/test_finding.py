"""A recorded run is found by its id or a part of it; what names none, or several, is one line."""

from pathlib import Path

import pytest
from recorded import experiment, fill

from repro.harness.results import find_run, load


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("results")
    fill(path, experiment())
    fill(path, experiment(name="again", Ms=(4,)))
    fill(path / "reference", experiment())
    return path


def test_ids_and_their_parts_are_found_own_results_first(recorded: Path):
    run = next(run.id for run in load(recorded).runs if (run.K, run.M) == (2, 1))
    parts = ("transformer-K2-M1", "K2-M1", run.rpartition("-")[2], f"table2/{run[3:]}")
    for text in (run, *parts, f"test-cpu-2c/laptop/table2/{run}"):
        results, found = find_run(text, recorded)
        assert found.id == run
        assert results.journals[0].root == recorded


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (
            "transformer-K2-M4",
            "names 2 runs, such as .*again/.*table2/transformer-K2-M4.*give more of one",
        ),
        ("tranformer-K2-M1", "no run below.*did you mean 'transformer-K2-M1-"),
        ("table2", "names 6 runs.*/transformer-K1-M1-"),
    ],
)
def test_a_mistake_is_one_line(run: str, words: str, recorded: Path):
    with pytest.raises(ValueError, match=rf"^run = '{run}': .*{words}.*$"):
        find_run(run, recorded)
