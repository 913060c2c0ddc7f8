"""The numbers of figures, read off what was drawn."""

from math import isnan, nan

import pytest

from repro.report.drawn import Number, numbers
from repro.report.style import FIDELITIES, grid, styled, ticks

NONE = pytest.approx(nan, nan_ok=True)


def test_bars_and_points_are_read_with_their_places_and_intervals():
    with styled():
        figure, ((left, right),) = grid(1, 2, 2)
        left.set_title("bars")
        left.bar([-0.1, 0.9], [2, 3], yerr=[[0.5, 0], [1, 0]], label="quoted")
        left.axhline(1)
        left.plot([0, 1], [7, 8], "--", label="a closed form")
        ticks(left, [0, 1], ["K=2\nM=1", "K=4\nM=1"])
        right.set_title("points")
        right.errorbar([1, 2], [4, 5], [[1, 0], [2, 0]], marker="o", color=FIDELITIES["measured"])
        right.plot([3], [6], "x", label="other")
        found = numbers(figure, "f")
    assert found == [
        ("f", "bars", "quoted", "K=2 M=1", 2, 1.5, 3),
        ("f", "bars", "quoted", "K=4 M=1", 3, NONE, NONE),
        ("f", "points", "measured", "1", 4, 3, 6),
        ("f", "points", "measured", "2", 5, NONE, NONE),
        ("f", "points", "other", "3", 6, NONE, NONE),
    ]


def test_values_are_on_x_where_names_are_on_y():
    with styled():
        figure, ((axes,),) = grid(1, 1, 2)
        axes.barh([0, 1], [0.25, 0.75], label="share")
        axes.errorbar([1.5], [1], xerr=[[0.5], [1]], marker="o", label="ratio")
        axes.set_yticks([0, 1], ["naive", "gpipe"])
        axes.set_xlabel("over one device")
        bars, ratio = numbers(figure, "f")[:2], numbers(figure, "f")[2]
    assert [(line.at, line.value) for line in bars] == [("naive", 0.25), ("gpipe", 0.75)]
    assert all(isnan(line.low) for line in bars)
    assert ratio == Number("f", "over one device", "ratio", "gpipe", 1.5, 1, 2.5)
