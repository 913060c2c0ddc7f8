"""Table 1: readings of the 12 bytes, what follows from runs that are missing or differ."""

from dataclasses import replace

import pytest
from recorded import changed_runs, with_values

from repro.experiments.table1.report import claims, tables
from repro.experiments.table1.runs import trained
from repro.harness.results import Results, Run
from repro.paper.numbers import table1

AT_2, NAIVE = "AmoebaNet-D Pipeline-2, (18, 544)", "AmoebaNet-D Naive-1, (18, 208)"
(PAPER_AT_2,) = [row for row in table1() if (row.model, row.accelerators) == ("amoebanet-d", 2)]


def test_a_column_is_not_judged_by_some_of_its_readings(reference: Results):
    def without(run: Run) -> Run:
        is_one = run.spec.optimizer == "rmsprop" and run.spec.memory == 8000 * 10**6
        return replace(run, status="planned", rounds=()) if is_one else run

    words = {claim.what: claim.verdict for claim in claims(changed_runs(reference, without))}
    assert words[f"parameters of {AT_2}"] == "not tested here"
    assert words[f"peak activations of {AT_2}"] == "not tested here"
    assert words[f"peak activations of {NAIVE}"] == "not reproduced"  # it has one reading


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda run: run, "trains"),
        (
            lambda run: with_values(run, fit=run.rounds[-1].values["fit"] | {"largest": None}),
            "out of memory",
        ),
        (lambda run: replace(run, status="interrupted", rounds=()), "-"),
    ],
)
def test_what_a_gpu_showed(reference: Results, change, words: str):
    printed = trained(PAPER_AT_2)
    changed = changed_runs(reference, lambda run: change(run) if run.spec == printed else run)
    shown = tables(changed)[0].shown.set_index("column")
    assert shown.loc[AT_2, "trained on a GPU"] == words
