"""Figures: stable bytes, the data that goes into them, and a small animation."""

from typing import Any

import pytest
from matplotlib.colors import to_hex
from PIL import Image
from recorded import timeline

from repro.report import curves, gantt
from repro.report.compare import rows_of
from repro.report.style import KINDS, MARKERS, styled


@pytest.fixture(autouse=True)
def _styled():
    with styled():
        yield


def panel_of(figure: Any) -> Any:
    """The one panel; drawing it must not have been declined."""
    assert figure is not None
    (axes,) = (axes for axes in figure.axes if axes.get_visible())
    return axes


def theory_of(axes: Any, style: str) -> list[list[float]]:
    return [list(line.get_ydata()) for line in axes.get_lines() if line.get_linestyle() == style]


def points_of(axes: Any, fidelity: str) -> list[float]:
    marked = [line for line in axes.get_lines() if line.get_marker() == MARKERS[fidelity]]
    return [y for line in marked for y in line.get_ydata()]


def test_speedup_has_measured_points_and_both_ideals(results):
    axes = panel_of(curves.speedup(results, rows_of(results, status="done")))
    assert points_of(axes, "measured") == pytest.approx([1, 1.6])
    assert theory_of(axes, "--") == [pytest.approx([1, 1.6])]
    assert theory_of(axes, ":") == [pytest.approx([8 / 7, 32 / 19])]


def test_bubble_has_idle_over_total_in_percent_and_keeps_fidelities_apart(mixed):
    axes = panel_of(curves.bubble(mixed, rows_of(mixed, status="done")))
    expected = [100 * timeline(2, M).idle_over_total for M in (1, 4)]
    assert points_of(axes, "measured") == points_of(axes, "emulated") == pytest.approx(expected)
    assert theory_of(axes, "--")[0][0] == pytest.approx(50)
    # A speedup is over one stage of the same fidelity, and there is no emulated one.
    axes = panel_of(curves.speedup(mixed, rows_of(mixed, status="done")))
    assert points_of(axes, "emulated") == []


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
    (axes,) = gantt.draw("", [("", step)], "measured").axes
    for kind in ("F", "R", "B"):
        expected = [
            (1e3 * (span.start - step.start), 1e3 * (span.end - step.start), span.stage)
            for span in step.spans
            if span.kind == kind
        ]
        assert sorted(boxes_of(axes, kind)) == [pytest.approx(box) for box in sorted(expected)]


@pytest.mark.parametrize("K", [1, 2, 4])
def test_the_picture_of_a_step_has_rows_that_can_be_read(K):
    figure = gantt.draw("a step", [("", timeline(K, 4))], "measured")
    figure.draw_without_rendering()
    (axes,) = figure.axes
    assert axes.get_window_extent().height / figure.dpi / K > 0.2, (
        "inches, room for a label of 9.5 points"
    )


def test_the_animation_is_small_and_ends_complete(tmp_path):
    path = gantt.gantt_gif(timeline(2, 4), tmp_path / "a.gif", "measured", frames=6)
    assert path.stat().st_size <= 400_000
    with Image.open(path) as gif:
        assert getattr(gif, "n_frames", 1) == 7
        assert gif.info["comment"] == b"measured", "its title"
        first = gif.convert("RGB").tobytes()
        gif.seek(6)
        assert gif.convert("RGB").tobytes() != first
