"""The audit computes what follows from printed numbers."""

from dataclasses import replace

import pytest

from repro.claims import audit as module
from repro.claims.audit import PAPER, SOURCES, audit


def line(place: str):
    (found,) = [line for line in audit() if place in line.place]
    return found


@pytest.mark.parametrize(
    ("place", "follows"),
    [
        ("Transformer Naive-1", "the two cells are swapped"),
        ("AmoebaNet-D Pipeline-8", "21.6 GB, or 2.05B parameters"),
        ("AmoebaNet-D on 8", "21.95x"),
        ("Transformer on 128", "297.3x"),
        ("Transformer-48 at K=2", "15.3 GB"),
        ("section 2.3", "9% to 18%"),
        ("the pie (K=2)", "true for M up to 23 only"),
        ("bars", "4 of 4 sizes are not in the paper"),
        ("6B parameters", "at most 128 accelerators"),
        ("AmoebaNet-B", "6.3 is the Transformer-48's"),
        ("v1's abstract", "5 of 7"),
    ],
)
def test_what_follows(place, follows):
    assert line(place).follows.startswith(follows)


def test_seven_cells_of_table_2_are_above_any_fixed_batch_pipeline():
    found = [line for line in audit() if line.place == "Table 2"]
    assert [line.follows.split()[0] for line in found] == ["7"]


def test_two_utilisations_are_not_their_own_formula():
    found = [line for line in audit() if "utilisation" in line.place]
    assert [(line.printed[:4], line.follows) for line in found] == [
        ("50 %", "57 %"),
        ("31 %", "36 %"),
    ]


def test_another_printed_number_changes_its_line(monkeypatch):
    """With 24.62 GB printed as 21.6 GB the cell agrees with its parameters."""
    assert not line("AmoebaNet-D Pipeline-8").agrees
    changed = [
        replace(size, parameter_memory_gb=21.6) if size.parameter_memory_gb == 24.62 else size
        for size in module.table1()
    ]
    monkeypatch.setattr(module, "table1", lambda: changed)
    assert line("AmoebaNet-D Pipeline-8").agrees


def test_both_parts_are_there():
    assert {line.part for line in audit()} == {PAPER, SOURCES}
    assert {line.agrees for line in audit()} == {True, False}
