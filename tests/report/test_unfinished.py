"""Reports of experiments that are not done: the committed results with their rounds cut off."""

from dataclasses import replace
from pathlib import Path

import pytest
from recorded import changed_runs

from repro.harness.results import Results, load
from repro.report.declared import HOME, report_of
from repro.report.style import styled

NAMES = sorted(path.parent.name for path in HOME.glob("*/report.py"))


@pytest.fixture(scope="module")
def reference() -> Results:
    return load(Path(__file__).parents[2] / "results/reference")


@pytest.fixture(scope="module")
def unfinished(reference) -> list[Results]:
    """Two rounds of each run, which are too few for an interval; one, and then a failure; none."""
    cuts = ((2, "done"), (1, "failed(oom)"), (0, "planned"))
    return [
        changed_runs(reference, lambda run, n=n, s=s: replace(run, rounds=run.rounds[:n], status=s))
        for n, s in cuts
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_report_is_made_of_whatever_there_is(unfinished, name):
    report = report_of(name)
    assert report is not None
    for results in unfinished:
        for table in report.tables(results):
            assert table.csv()


@pytest.mark.parametrize("name", NAMES)
def test_without_runs_there_is_nothing_to_show(reference, name):
    report = report_of(name)
    assert report is not None
    nothing = replace(reference, runs=[])
    assert not any(len(table.data) for table in report.tables(nothing))
    figures = getattr(report, "figures", None)
    with styled():
        drawn = list(figures(nothing, [])) if figures else []
    assert not any(figure for _, figure, _ in drawn)
