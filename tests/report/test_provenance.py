"""Below a table stand commit and machine of its rows where they differ; two machines are shown."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from recorded import changed_runs

from repro.harness.results import Results, Round, Run, load
from repro.report.compare import rows_of
from repro.report.provenance import provenance, with_provenance
from repro.report.table import Heading, Table
from repro.report.tables import all_tables

ROOT = Path(__file__).parents[2]
# Experiments whose tables name the place of each line. Tables 1 and 2 show counts and modelled runs
# of one place, which other places repeat.
NAMES = {"breakdown", "bubble", "peers", "runtime", "simulator", "table3"}


def on(machine: str, commit: str, slower: float = 1.0) -> Callable[[Run], Run]:
    """A change of a run: recorded on this machine, by this commit, so many times as slow."""

    def changed_round(round_: Round) -> Round:
        values = dict(round_.values)
        if "step_s" in values:
            values["step_s"] = [slower * step for step in values["step_s"]]
        return replace(round_, commit=commit, values=values)

    def changed(run: Run) -> Run:
        rounds = tuple(changed_round(round_) for round_ in run.rounds)
        return replace(run, place=run.place._replace(machine=machine), rounds=rounds)

    return changed


def on_two_machines(results: Results) -> Results:
    """The runs recorded on one machine, and more slowly on another one by another commit."""
    here = changed_runs(results, on("here-2c", "aaaaaaaaaa"))
    other = changed_runs(results, on("other-2c", "bbbbbbbbbb", slower=1.37))
    return replace(results, runs=[*here.runs, *other.runs])


def rows_that_name(machine: str, table: Table) -> int:
    return sum(any(machine in cell.text for cell in row) for row in table.rows)


def test_nothing_is_said_of_rows_of_one_commit_and_machine(results):
    assert results.runs[0].rounds
    assert provenance(results.runs) == ""
    assert not [table.name for table in all_tables(results) if "Rows come from" in table.caption]


def test_both_machines_and_commits_stand_below_a_table(results):
    two = on_two_machines(results)
    sentence = (
        "Rows come from commit aaaaaaaaaa on here-2c (measured); commit bbbbbbbbbb on other-2c "
        "(measured)."
    )
    assert provenance(two.runs) == sentence
    tables = {table.name: table for table in all_tables(two)}
    for name in ("table2", "memory"):
        assert tables[name].caption.endswith(sentence)
        assert sentence in tables[name].markdown()
        assert rows_that_name("here-2c", tables[name]) == rows_that_name("other-2c", tables[name])


@pytest.fixture(scope="module")
def reference() -> Results:
    """The reference results of some experiments, each from one machine."""
    every = load(ROOT / "results/reference")
    kept: list[Run] = []
    for name in NAMES:
        runs = rows_of(every, experiment=name)
        kept += [run for run in runs if run.machine == runs[0].machine]
    return replace(every, runs=kept)


def test_no_table_takes_the_first_of_two_machines(reference):
    two = all_tables(on_two_machines(reference))
    of_experiments = [table for table in two if table.experiment]
    assert {table.experiment for table in of_experiments} >= {"peers", "runtime"}
    for table in of_experiments:
        shown = table.markdown()
        assert "on here-2c" in shown, table.name
        assert "on other-2c" in shown, table.name
        here, other = (rows_that_name(machine, table) for machine in ("here-2c", "other-2c"))
        assert here == other, table.name
        # Where a line has no run of its own, each machine has columns.
        names = " ".join(str(heading.shown) for heading in table.headings)
        assert here > 0 or ("here-2c" in names and "other-2c" in names), table.name


def test_a_table_whose_lines_hold_no_run_has_those_of_the_fidelities_that_it_names(mixed):
    def emulated_by_another(run: Run) -> Run:
        commit = "bbbbbbbbbb" if run.fidelity == "emulated" else "aaaaaaaaaa"
        return on("here-2c", commit)(run)

    results = changed_runs(mixed, emulated_by_another)
    parts = Table("parts", "Parts of a step", "Note.", [Heading(("measured", "K=2"))], [], "table2")
    assert with_provenance(results, parts).caption == "Note."
    both = replace(parts, headings=[*parts.headings, Heading(("emulated", "K=2"))])
    assert with_provenance(results, both).caption == (
        "Note. Rows come from commit aaaaaaaaaa on here-2c (measured); commit bbbbbbbbbb on "
        "here-2c (emulated)."
    )
