"""The published numbers; the golden tables hold them cell by cell."""

import pytest

from repro.paper import numbers


def test_every_number_says_where_it_stands():
    tables = [getattr(numbers, f"table{number}") for number in range(1, 6)]
    tables += [numbers.breakdown, numbers.translation_models, numbers.utilisation]
    everything = [row for table in tables for row in table()]
    everything += [point for name in numbers.figures() for point in numbers.figure(name)]
    assert all(row.source.work for row in everything)


def test_the_breakdown_fills_the_step_and_says_what_was_inferred():
    shares = {share.part: share for share in numbers.breakdown()}
    assert sum(share.percent for share in shares.values()) == pytest.approx(100)
    assert {part for part, share in shares.items() if share.source.reading == "subtracted"} == {
        "update"
    }
