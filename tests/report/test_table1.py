"""Table 1: readings of the 12 bytes, what follows from runs that are missing or differ."""

from dataclasses import replace

import pytest
from recorded import changed_runs, with_values

from experiments.table1 import report
from experiments.table1.report import Column, claims, tables
from experiments.table1.runs import READINGS, searched, trained
from repro.harness.results import Results, Run
from repro.harness.schema import CutModel
from repro.paper.numbers import table1

AT_2, NAIVE = "AmoebaNet-D Pipeline-2, (18, 544)", "AmoebaNet-D Naive-1, (18, 208)"
(PAPER_AT_2,) = [row for row in table1() if (row.model, row.accelerators) == ("amoebanet-d", 2)]


def test_gradients_are_activations_where_the_12_bytes_are_two_slots():
    gb = 10**9
    kinds = {"parameters": gb, "gradients": gb, "optimizer": 2 * gb, "activations": 5 * gb}
    stages = [{"at": "B0", "total": 9 * gb, **kinds}] * 2
    cut = {"args": {}, "parameters": 1, "fullest": 9 * gb, "balance": [1, 1], "stages": stages}
    sizes = dict.fromkeys(READINGS, CutModel.model_validate(cut))
    activations = Column(PAPER_AT_2, sizes, {}).activations
    assert activations == {name: 12 if name.startswith("two") else 10 for name in READINGS}


def test_every_reading_is_recorded(reference: Results):
    """A changed spec would lose its run."""
    for column in report._columns(reference):
        readings = 1 if column.paper.name == "Naive-1" else 4
        assert len(column.sizes) == len(column.searches) == readings


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
        (lambda run: replace(run, status="oom(stage 1)", rounds=()), "out of memory"),
        (lambda run: replace(run, status="interrupted", rounds=()), "-"),
        (lambda run: replace(run, spec=searched(PAPER_AT_2)), "largest D=544"),  # as if it was one
    ],
)
def test_what_a_gpu_showed(reference: Results, change, words: str):
    printed = trained(PAPER_AT_2)
    changed = changed_runs(reference, lambda run: change(run) if run.spec == printed else run)
    shown = tables(changed)[0].shown.set_index("column")
    assert shown.loc[AT_2, "trained on a GPU"] == words
