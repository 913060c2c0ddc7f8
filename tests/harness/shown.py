"""A small sweep that a crew measured, and all that a report shows of it, to hold damaged records
against."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from crew import MACHINE, Crew, experiment, measure, spec

from repro.harness.results import load
from repro.report import page
from repro.report.sections import sections_of
from repro.report.tables import all_tables

SWEEP = experiment(spec(1, 4), spec(2, 4))
BASE, RUN = (one.run_id(1, MACHINE.identity) for one in SWEEP.groups[0].runs)


@dataclass(frozen=True)
class Seen:
    """What a report shows of a results folder, but for the rounds' number and commits, and what it
    is made from."""

    rows: list[dict[str, Any]]
    timelines: list[Any]
    warned: list[str]
    lines: list[dict[str, Any]]
    specs: dict[str, Any]

    def behind(self, other: "Seen") -> bool:
        """Whether every number comes from what the other saw as well."""
        return (
            all(line in other.lines for line in self.lines)
            and self.specs.items() <= other.specs.items()
        )


def seen(results: Path) -> Seen:
    """Also makes what a page shows of all files, so that none of it may fail."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = load(results)
        tables = all_tables(found)
        page._environments(found)
        sections_of(found, tables, [], {}, [])
        timelines = [found.timeline(run) for run in found.runs]
    told = list(dict.fromkeys(str(warning.message) for warning in caught))
    rows, lines = found.rows.drop(columns=["rounds", "commit"]), found.rounds.drop(columns="commit")
    return Seen(records(rows), timelines, told, records(lines), found.specs)


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a frame, None where there is no number."""
    some = frame.astype(object)
    return [
        {str(k): v for k, v in row.items()}
        for row in some.where(some.notna(), None).to_dict("records")
    ]


def folder_in(results: Path) -> Path:
    return results / MACHINE.slug / "smoke" / "tiny"


def assert_told(after: Seen, path: Path, whole: Seen) -> None:
    assert after.behind(whole)
    assert len(after.warned) == 1, after.warned
    assert after.warned[0].startswith(f"{path} is left out: ")


def again(results: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert measure(results, Crew(), SWEEP) == 0


def assert_whole_again(results: Path, whole: Seen) -> None:
    again(results)
    after = seen(results)
    assert (after.rows, after.timelines, after.warned) == (whole.rows, whole.timelines, [])
    assert len(after.lines) >= len(whole.lines)
