"""The published numbers, spot-checked cell by cell against the paper."""

import pytest

from repro.paper import (
    breakdown,
    figure,
    figures,
    table1,
    table2,
    table3,
    table4,
    table5,
    translation_models,
    utilisation,
)

TABLE2 = {
    "amoebanet-d": {1: (1, 1.13, 1.38), 4: (1.07, 1.26, 1.72), 32: (1.21, 1.84, 3.48)},
    "transformer": {1: (1, 1.07, 1.3), 4: (1.7, 3.2, 4.8), 32: (1.8, 3.4, 6.3)},
}


def test_table_2_has_all_eighteen_cells():
    cells = {(c.model, c.K, c.M): c.value for c in table2()}
    assert cells == {
        (model, K, M): value
        for model, rows in TABLE2.items()
        for M, values in rows.items()
        for K, value in zip((2, 4, 8), values, strict=True)
    }


def test_every_number_says_where_it_stands():
    tables = (table1, table2, table3, table4, table5, breakdown, translation_models, utilisation)
    everything = [row for table in tables for row in table()]
    everything += [point for name in figures() for point in figure(name)]
    assert all(row.fidelity == "quoted" and str(row.source) for row in everything)


def test_the_breakdown_fills_the_step_and_says_what_was_inferred():
    shares = {share.part: share for share in breakdown()}
    assert sum(share.percent for share in shares.values()) == pytest.approx(100)
    assert {part for part, share in shares.items() if share.source.reading == "subtracted"} == {
        "update"
    }
