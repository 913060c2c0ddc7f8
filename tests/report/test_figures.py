"""Figures: stable bytes, the data that goes into them, and a small animation."""

from dataclasses import replace
from math import nan
from typing import Any

import pytest
from matplotlib.colors import to_hex
from PIL import Image
from recorded import timeline

from repro.gpipe.schedule.kinds import make_schedule
from repro.gpipe.schedule.replay import replay
from repro.harness.results import Run
from repro.report import bars, curves, figures, gantt, ratio
from repro.report.compare import rows_of
from repro.report.ratio import ITSELF, Ratio
from repro.report.style import IDLE, KINDS, MARKERS, save, series_colour, styled


@pytest.fixture
def done(results):
    return rows_of(results, status="done")


def changed(run: Run, **fields: Any) -> Run:
    """The run as if its spec had these fields."""
    return replace(run, spec=run.spec.model_copy(update=fields))


def of_fidelity(run: Run, fidelity: str) -> Run:
    return changed(run, fidelity=fidelity)


def panels(figure: Any) -> list[Any]:
    """The figure's axes; drawing it must not have been declined."""
    assert figure is not None
    return figure.axes


def lines(axes):
    """Every drawn line as {label or style: (xs, ys)}; theory lines have no label of their own."""
    return [
        (line.get_linestyle(), list(line.get_xdata()), list(line.get_ydata()))
        for line in axes.get_lines()
    ]


def test_speedup_plots_measured_points_and_both_ideals(results, done):
    with styled():
        figure: Any = curves.speedup(results, done)
        against_k, against_m = panels(figure)
        measured = {container.get_label(): container.lines[0] for container in against_k.containers}
        assert list(measured["M=4"].get_ydata()) == pytest.approx([1, 1.6])
        assert to_hex(measured["M=4"].get_color()) == series_colour(4)
        found = lines(against_m)
        assert any(style == "--" and ys == pytest.approx([1, 1.6]) for style, _, ys in found)
        assert any(style == ":" and ys == pytest.approx([8 / 7, 32 / 19]) for style, _, ys in found)
        assert figure.legends[0].get_texts()[0].get_text() == "measured"


def test_bubble_plots_idle_over_total_in_percent(results, done):
    with styled():
        axes = panels(curves.bubble(results, done))[0]
        assert "idle/total" in axes.get_ylabel()
        points = next(line for line in axes.get_lines() if line.get_marker() == MARKERS["measured"])
        expected = [100 * timeline(2, M).bubble_over_total for M in (1, 4)]
        assert list(points.get_ydata()) == pytest.approx(expected)
        assert points.get_color() == series_colour(2)
        assert any(style == "--" and ys[0] == pytest.approx(50) for style, _, ys in lines(axes))


def test_no_series_mixes_fidelities(mixed):
    rows = rows_of(mixed, status="done")
    with styled():
        (panel,) = (axes for axes in panels(curves.bubble(mixed, rows)) if axes.get_visible())
        marks = [line.get_marker() for line in panel.get_lines() if line.get_marker() != "None"]
        assert marks == [MARKERS["measured"], MARKERS["emulated"]]
        assert [text.get_text() for text in panel.get_legend().get_texts()] == ["K=2"]
        # A speedup is over one stage of the same fidelity.
        single = [of_fidelity(row, "emulated") for row in rows if row.K == 1]
        with_base = replace(mixed, runs=[*mixed.runs, *single])
        against_k, against_m = panels(curves.speedup(with_base, [*rows, *single]))
        assert [container.get_label() for container in against_m.containers] == [
            "K=2",
            "K=2, emulated",
        ]
        assert [container.get_label() for container in against_k.containers][:2] == [
            "M=1",
            "M=1, emulated",
        ]
        memory = panels(bars.memory(mixed, rows))
        assert [axes.get_ylabel() for axes in memory] == [
            "peak (MiB), measured",
            "peak (MiB), emulated",
        ]
        assert [len(axes.patches) for axes in memory] == [6, 4]
        ((name, figure, caption),) = figures.figure2(mixed, rows)
        assert figure is not None
        assert name == "figure2"
        assert "measured" in figure.get_suptitle()
        assert "(measured)" in caption, "both of its steps"


def test_few_rounds_draw_no_interval(done):
    few, baseline = Ratio(1.5, nan, nan, 4, "K=1"), Ratio(1, 1, 1, 4, ITSELF)
    assert curves._errors([(done[0], few), (done[0], baseline)]) is None
    assert curves._errors([(done[0], few), (done[0], Ratio(1.5, 1.25, 2, 5, "K=1"))]) == [
        [0, 0.25],
        [0, 0.5],
    ]
    assert "no interval below 5 rounds" in figures.PICTURES["speedup"][1]


def test_nothing_to_draw_is_no_figure(results, nothing, tmp_path):
    single = [row for row in rows_of(results) if row.K == 1]
    with styled():
        assert curves.speedup(results, single) is None
        assert curves.bubble(results, single) is None
        assert list(figures.figure2(results, single)) == []
    assert figures.draw_all(nothing, tmp_path) == []


def test_figure_2_has_a_step_at_m_1_above_one_of_several_micro_batches(results, done):
    with styled():
        ((_, figure, _),) = figures.figure2(results, done)
        assert figure is not None
        above, below = figure.axes
        assert figure.get_suptitle() == "Transformer, measured: K=2, N=32"
        assert above.get_title(loc="left").startswith("M=1, as Figure 2(b): ")
        assert below.get_title(loc="left").startswith("M=4, as Figure 2(c): ")
        assert above.get_xlim() == below.get_xlim(), "one clock"
        assert below.get_xlabel() == "time (ms), measured"
        looks = {to_hex(patch.get_facecolor()).upper() for patch in below.patches}
        assert looks == {IDLE, *(KINDS[kind] for kind in ("F", "R", "B", "U", "setup"))}
        assert "$B_{1,3}$" in {text.get_text() for text in below.texts}
        assert [text.get_text() for text in below.get_yticklabels()] == ["stage 0", "stage 1"]


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
    with styled():
        figure = gantt.draw("", [("", step)], "measured")
        for kind in ("F", "R", "B"):
            expected = [
                (1e3 * (span.start - step.start), 1e3 * (span.end - step.start), span.stage)
                for span in step.spans
                if span.kind == kind
            ]
            drawn = boxes_of(figure.axes[0], kind)
            assert sorted(drawn) == [pytest.approx(box) for box in sorted(expected)]


def test_interleaved_stages_stand_on_the_row_of_their_rank():
    schedule = make_schedule("interleaved-1f1b", 4, 4, "never", 2)
    step = replay(schedule, lambda action: ratio.UNIT_COSTS[action.kind])
    with styled():
        (axes,) = gantt.draw("", [("", step)], "simulated").axes
        assert [text.get_text() for text in axes.get_yticklabels()] == ["rank 0", "rank 1"]
        assert {row for _, _, row in boxes_of(axes, "F")} == {0, 1}
        assert len(boxes_of(axes, "F")) == 16
        opacities = {patch.get_alpha() for patch in axes.patches}
        assert opacities == {None, gantt._PALER}, "the second stage of a rank is paler"


def test_split_backwards_are_drawn_in_two_colours():
    step = ratio.ideal(2, 4, "zb-h1", "never")
    assert step is not None
    with styled():
        figure = gantt.draw("", [("", step)], "simulated")
        assert all(boxes_of(figure.axes[0], kind) for kind in "FIW")
        texts = [text.get_text() for text in figure.legends[0].get_texts()]
        assert texts == ["F forward", "I gradient of inputs", "W gradient of weights", "idle"]


def test_the_same_figure_has_the_same_bytes(tmp_path):
    written = []
    for attempt in ("a", "b"):
        with styled():
            written.append(
                save(gantt.draw("title", [("", timeline(2, 1))], "measured"), tmp_path / attempt)
            )
    for first, second in zip(*written, strict=True):
        assert first.read_bytes() == second.read_bytes()
    assert b"<dc:date>" not in written[0][1].read_bytes()


def test_the_animation_is_small_and_ends_complete(tmp_path):
    path = gantt.gantt_gif(timeline(2, 4), tmp_path / "a.gif", "measured", frames=6)
    assert path.stat().st_size <= 400_000
    with Image.open(path) as gif:
        assert getattr(gif, "n_frames", 1) == 7
        assert gif.info["comment"] == b"measured", "its title"
        first = gif.convert("RGB").tobytes()
        gif.seek(6)
        assert gif.convert("RGB").tobytes() != first


def test_a_negative_share_is_taken_off_the_bubble():
    parts = {"computation": 0.5, "bubble": 0.4, "imbalance": -0.1, "transfer": 0.2}
    drawn = bars.drawable(parts)
    assert drawn == {
        "computation": 0.5,
        "bubble": pytest.approx(0.3),
        "imbalance": 0,
        "transfer": 0.2,
    }
