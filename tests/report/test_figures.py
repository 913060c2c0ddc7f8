"""Figures: stable bytes, and the data that goes into them."""

from dataclasses import replace
from math import isnan
from typing import Any

import pytest
from matplotlib.colors import to_hex
from recorded import timeline

from repro.harness.results import load
from repro.paper import theory
from repro.report import curves, gantt
from repro.report.compare import rows_of
from repro.report.style import KINDS, MARKERS, styled


@pytest.fixture(autouse=True)
def _styled():
    with styled():
        yield


def theory_of(axes: Any, style: str) -> list[list[float]]:
    return [list(line.get_ydata()) for line in axes.get_lines() if line.get_linestyle() == style]


def points_of(axes: Any, fidelity: str) -> list[float]:
    marked = [line for line in axes.get_lines() if line.get_marker() == MARKERS[fidelity]]
    return [y for line in marked for y in line.get_ydata()]


def test_a_sweep_has_speed_up_step_idle_share_and_memory_of_each_k_beside_the_ideal(own_sweep):
    figure = curves.sweep(curves.timed_runs(load(own_sweep), "sweep"))
    assert figure is not None
    speedup, step, idle, peak = figure.axes
    legend = speedup.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["K=1", "K=2"]
    assert points_of(speedup, "measured") == pytest.approx([1, 2])
    # The ideal recomputes, which plain training does not.
    assert theory_of(speedup, ":") == [[pytest.approx(3 / 4)], [pytest.approx(12 / 11)]]
    assert points_of(step, "measured") == pytest.approx([100, 50])
    shares = [100 * timeline(K, 2).idle_over_total for K in (1, 2)]
    assert points_of(idle, "measured") == pytest.approx(shares)
    bubbles = [[pytest.approx(100 * theory.bubble(K, 2, "early"))] for K in (1, 2)]
    assert theory_of(idle, ":") == bubbles
    assert points_of(peak, "measured") == pytest.approx([1, 1])


@pytest.mark.parametrize(
    "other", [{"library": "torch"}, {"schedule": "interleaved-1f1b"}, {"D": 2}]
)
def test_the_ideal_is_that_of_one_pipeline_of_ours(results, other):
    (run,) = rows_of(results, K=2, M=4)
    assert curves.ideal_of(run) == pytest.approx((24 / 19, theory.bubble(2, 4, "early")))
    spec = run.spec.model_copy(update=other)
    assert all(map(isnan, curves.ideal_of(replace(run, spec=spec))))


def boxes_of(axes: Any, kind: str) -> list[tuple[float, float, float]]:
    """Left, right and row of every box of a kind."""
    patches = [
        patch for patch in axes.patches if to_hex(patch.get_facecolor()).upper() == KINDS[kind]
    ]
    corners = [patch.get_path().vertices.reshape(-1, 5, 2) for patch in patches]
    return [
        (box[0, 0], box[1, 0], (box[0, 1] + box[2, 1]) / 2) for boxes in corners for box in boxes
    ]


def test_a_box_is_as_long_as_its_span():
    step = timeline(2, 4)
    (axes,) = gantt.draw([("", step)], "measured").axes
    for kind in ("F", "R", "B"):
        expected = [
            (1e3 * (span.start - step.start), 1e3 * (span.end - step.start), span.stage)
            for span in step.spans
            if span.kind == kind
        ]
        assert sorted(boxes_of(axes, kind)) == [pytest.approx(box) for box in sorted(expected)]
