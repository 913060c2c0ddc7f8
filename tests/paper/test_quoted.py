"""The published numbers; the golden tables hold them cell by cell."""

import pytest

from repro.paper.numbers import (
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


def test_every_number_says_where_it_stands():
    tables = (table1, table2, table3, table4, table5, breakdown, translation_models, utilisation)
    everything = [row for table in tables for row in table()]
    everything += [point for name in figures() for point in figure(name)]
    assert all(row.source.work for row in everything)


def test_the_breakdown_fills_the_step_and_says_what_was_inferred():
    shares = {share.part: share for share in breakdown()}
    assert sum(share.percent for share in shares.values()) == pytest.approx(100)
    assert {part for part, share in shares.items() if share.source.reading == "subtracted"} == {
        "update"
    }
