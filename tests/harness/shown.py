"""A small sweep that a crew measured, and what a report shows of it, to hold damaged records
against."""

from pathlib import Path
from typing import Any

import pytest
from crew import MACHINE, Crew, experiment, measure, spec

from repro.harness.frame import all_runs
from repro.harness.results import load
from repro.io import lock
from repro.report import page
from repro.report.sections import sections_of
from repro.report.tables import all_tables

SWEEP = experiment(spec(1, 4), spec(2, 4))
BASE, RUN = (one.run_id(1, MACHINE.identity) for one in SWEEP.groups[0].runs)


def seen(results: Path) -> tuple[str, list[Any]]:
    """The rows and timelines of a report but for the rounds' number and commits; makes what a page
    shows of all files, so that none of it may fail."""
    found = load(results)
    tables = all_tables(found)
    page._environments(found)
    sections_of(found, tables, [], {}, [])
    timelines = [found.timeline(run) for run in found.runs]
    return all_runs(found).drop(columns=["rounds", "commit"]).to_csv(), timelines


def folder_in(results: Path) -> Path:
    return results / MACHINE.slug / "smoke" / "tiny"


def again(results: Path, **options: Any) -> None:
    assert measure(results, Crew(), SWEEP, **options) == 0


def assert_stops(results: Path, words: str) -> None:
    """Neither a report nor a run takes it: both end in one line, and nothing is changed."""

    def held() -> dict[Path, bytes]:
        files = (path for path in results.rglob("*") if path.is_file() and path.name != lock.NAME)
        return {path: path.read_bytes() for path in files}

    before = held()
    for command in (seen, again):
        with pytest.raises(ValueError, match=words) as caught:
            command(results)
        assert "\n" not in str(caught.value)
    assert held() == before
