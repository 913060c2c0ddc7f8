"""Every exhibit from results that are not whole: what `plots/reference` cannot hold."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from repro.harness.results import Results, Run, load
from repro.report.compare import of_paper
from repro.report.declared import answer_of
from repro.report.tables import all_tables

REFERENCE = Path(__file__).parents[2] / "results/reference"


@cache
def reference() -> Results:
    return load(REFERENCE)


def without(kept) -> Results:
    """The reference results, of which only some runs are done."""
    runs = [
        run if kept(number, run) else replace(run, status="planned", rounds=())
        for number, run in enumerate(reference().runs)
    ]
    return replace(reference(), runs=runs)


def smoke(run: Run) -> Run:
    return replace(run, place=run.place._replace(scale="smoke"))


HALF = {
    "nothing": lambda number, run: False,
    "every second run": lambda number, run: number % 2,
    "the other runs": lambda number, run: number % 2 == 0,
    "no baseline": lambda number, run: (run.K, run.M) not in {(1, 1), (2, 1)},
    "simulated": lambda number, run: run.fidelity == "simulated",
    "not simulated": lambda number, run: run.fidelity != "simulated",
    "the first seed": lambda number, run: run.spec.seed == 0,
}


@pytest.mark.parametrize("half", HALF)
def test_tables_and_answers_of_half_recorded_results(half):
    tables = all_tables(without(HALF[half]))
    by_name = {table.name: table for table in tables}
    for table in tables:
        assert len(table.shown)
        assert "nan" not in table.markdown().lower().split(), table.name
        if table.experiment:
            answer_of(table.experiment, by_name)


def test_tables_of_fewer_rounds_have_no_interval():
    short = [replace(run, rounds=run.rounds[:1]) for run in reference().runs]
    for table in all_tables(replace(reference(), runs=short)):
        assert len(table.shown)


def test_nothing_of_the_paper_stands_beside_a_tiny_scale():
    tiny = replace(reference(), runs=[smoke(run) for run in reference().runs])
    for table in all_tables(tiny):
        if table.experiment in of_paper(reference()):
            assert "quoted" not in table.markdown()
