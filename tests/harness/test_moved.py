"""Results that are deleted or moved while a sweep runs: one line, and what was measured is there
again."""

import fcntl
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from crew import Crew, experiment, measure, spec
from shown import folder_in

from repro.harness.results import load
from repro.io import lock

SWEEP = experiment(spec(1, 4), spec(2, 4), rounds=3)
JOBS = 6  # of the sweep: two runs in three rounds


def delete_all(results: Path) -> None:
    shutil.rmtree(results)


def move_all(results: Path) -> None:
    results.rename(results.with_name("moved"))


def delete_a_run(results: Path) -> None:
    shutil.rmtree(min(folder_in(results).glob("transformer-K2*")))


def delete_the_rounds(results: Path) -> None:
    shutil.rmtree(folder_in(results) / "rounds")


def delete_the_listing(results: Path) -> None:
    (folder_in(results) / "experiment.json").unlink()


WAYS = [delete_all, move_all, delete_a_run, delete_the_rounds, delete_the_listing]


def disturbed(results: Path, way: Callable[[Path], None], job: int) -> tuple[int, list[str]]:
    """The sweep, with this done before one of its jobs: exit status and warnings."""
    crew = Crew(before=lambda number: way(results) if number == job else None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        code = measure(results, crew, SWEEP)
    assert len(crew.jobs) == JOBS
    return code, [str(warning.message) for warning in caught]


@pytest.mark.parametrize(
    ("way", "job"),
    [(way, job) for way in WAYS for job in range(2 if way is delete_the_rounds else 0, JOBS)],
)
def test_what_a_sweep_has_measured_is_there_at_its_end(
    tmp_path: Path, way: Callable[[Path], None], job: int
):
    results = tmp_path / "results"
    code, told = disturbed(results, way, job)
    assert code == 0
    assert len(told) == 1
    assert "somebody deleted or moved" in told[0]
    assert "\n" not in told[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = load(results)
    assert list(found.rows["status"]) == ["done", "done"]
    assert list(found.rows["rounds"]) == [3, 3]
    assert sorted(found.rounds["round"]) == 2 * ["timed-0001"] + 2 * ["timed-0002"] + 2 * [
        "timed-0003"
    ]
    assert all(found.timeline(run) is not None for run in found.runs)
    crew = Crew()
    assert measure(results, crew, SWEEP) == 0
    assert crew.jobs == []


def test_rounds_of_an_earlier_command_are_gone_and_are_measured_again_by_the_next(tmp_path: Path):
    results = tmp_path / "results"
    assert measure(results, Crew(), SWEEP, rounds=2) == 0
    crew = Crew(before=lambda number: delete_all(results) if number == 0 else None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert measure(results, crew, SWEEP) == 1
        found = load(results)
    reason = "interrupted(rounds of it were deleted while others were measured)"
    assert list(found.rows["status"]) == [reason, reason]
    assert list(found.rows["rounds"]) == [1, 1]
    assert measure(results, Crew(), SWEEP) == 0
    assert list(load(results).rows["rounds"]) == [3, 3]


def test_a_file_in_the_place_of_the_folder_is_one_line_that_names_it(tmp_path: Path):
    results = tmp_path / "results"

    def way(_: Path) -> None:
        delete_all(results)
        results.write_text("the user's")

    with pytest.raises(OSError, match=r"File exists|Not a directory") as caught:
        disturbed(results, way, 2)
    assert caught.value.filename is not None
    assert results.read_text() == "the user's"


def test_who_deletes_the_results_deletes_the_lock_and_it_is_taken_again(tmp_path: Path):
    results = tmp_path / "results"
    seen = []

    def way(number: int) -> None:
        if number == 0:
            delete_all(results)
        if number == 4:  # a round later
            with pytest.raises(ValueError, match="measures into it"), lock.held(results, "another"):
                pass
            seen.append(number)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert measure(results, Crew(before=way), SWEEP) == 0
    assert seen == [4]
    with lock.held(results, "later"):
        pass


def test_where_another_one_has_begun_meanwhile_it_ends_in_one_line(tmp_path: Path):
    results = tmp_path / "results"
    theirs = []

    def way(number: int) -> None:
        if number == 2:
            delete_all(results)
            results.mkdir()
            theirs.append((results / lock.NAME).open("w"))
            fcntl.flock(theirs[0], fcntl.LOCK_EX)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ValueError, match="measures into it; wait until that has ended"):
            measure(results, Crew(before=way), SWEEP)
    theirs[0].close()
