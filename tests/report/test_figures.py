"""Figures: stable bytes, the data that goes into them, and a small animation."""

from dataclasses import replace
from math import nan
from typing import Any

import pytest
from matplotlib.colors import to_hex
from PIL import Image
from recorded import timeline

from repro.harness.results import Run
from repro.report import bars, curves, figures, gantt, ratio
from repro.report.compare import rows_of
from repro.report.ratio import ITSELF, Ratio
from repro.report.style import KINDS, MARKERS, PARTS, k_colour, m_colour, save, styled


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
        assert to_hex(measured["M=4"].get_color()) == m_colour(4)
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
        assert points.get_color() == k_colour(2)
        assert any(style == "--" and ys[0] == pytest.approx(50) for style, _, ys in lines(axes))


def test_cells_show_quoted_beside_ours(results, done):
    with styled():
        axes = panels(curves.cells(results, done))[0]
        quoted = next(line for line in axes.get_lines() if line.get_marker() == "D")
        assert sorted(quoted.get_ydata()) == [1, 1.07, 1.3, 1.7, 1.8, 3.2, 3.4, 4.8, 6.3]


def test_memory_has_a_bar_for_each_stage(results, done):
    with styled():
        axes = panels(bars.memory(results, done))[0]
        assert [bar.get_height() for bar in axes.patches] == pytest.approx(
            [100, 100, 100, 200, 100, 200]
        )
        assert "MiB" in axes.get_ylabel()


def test_breakdown_starts_with_the_paper_and_every_bar_is_full(results, done):
    with styled():
        found = panels(bars.breakdown(results, done))
        names = [[text.get_text() for text in axes.get_yticklabels()] for axes in found]
        assert names == [
            ["quoted: K=2, M not printed"],
            ["K=2, M=1, measured", "K=2, M=4, measured"],
        ]
        for axes, bar in ((found[0], 0), (found[1], 0), (found[1], 1)):
            parts = [
                container[bar].get_width()
                for container in axes.containers
                if hasattr(container, "orientation")
            ]
            assert sum(parts) == pytest.approx(100)


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
        bar_names = [
            text.get_text() for text in panels(bars.breakdown(mixed, rows))[1].get_yticklabels()
        ]
        assert sorted(bar_names) == [
            f"K=2, M={M}, {word}" for M in (1, 4) for word in ("emulated", "measured")
        ]
        made = {name: figure for name, figure, _ in figures.timelines(mixed, rows)}
        stems = {"figure2b_transformer", "figure2c_transformer"}
        assert set(made) == stems | {f"{stem}_emulated" for stem in stems}
        assert all(
            ("emulated" in figure.get_suptitle()) == ("emulated" in name)
            for name, figure in made.items()
        )


def test_few_rounds_draw_no_interval(done):
    few, baseline = Ratio(1.5, nan, nan, 4, "K=1"), Ratio(1, 1, 1, 4, ITSELF)
    assert curves._errors([(done[0], few), (done[0], baseline)]) is None
    assert curves._errors([(done[0], few), (done[0], Ratio(1.5, 1.25, 2, 5, "K=1"))]) == [
        [0, 0.25],
        [0, 0.5],
    ]
    for name in ("cells", "speedup"):
        assert "no interval below 5 rounds" in figures.PICTURES[name][1]


def test_nothing_to_draw_is_no_figure(results, nothing, tmp_path):
    single = [row for row in rows_of(results) if row.K == 1]
    with styled():
        assert curves.speedup(results, single) is None
        assert curves.bubble(results, single) is None
        assert bars.breakdown(results, single) is None
    assert figures.draw_all(nothing, tmp_path) == []


def test_timelines_follow_figure_2_of_the_paper(results, done):
    with styled():
        made = {name: figure for name, figure, _ in figures.timelines(results, done)}
        assert set(made) == {"figure2b_transformer", "figure2c_transformer"}
        panel, beneath = made["figure2c_transformer"].axes
        title = made["figure2c_transformer"].get_suptitle() + panel.get_title(loc="left")
        assert all(
            word in title
            for word in ("Figure 2(c)", "measured", "Transformer", "K=2", "M=4", "N=32")
        )
        assert "of K x step idle (idle/total)" in panel.get_title(loc="left")
        assert beneath.get_title(loc="left").startswith("simulated, ideal (unit costs")
        assert panel.get_xlabel() == "time (ms)"
        boxes = {to_hex(patch.get_facecolor()).upper() for patch in panel.patches}
        assert {KINDS[kind].upper() for kind in "FRBU"} <= boxes
        assert "$B_{1,3}$" in {text.get_text() for text in panel.texts}
        assert [text.get_text() for text in panel.get_yticklabels()] == ["stage 0", "stage 1"]


def test_a_box_is_as_long_as_its_span():
    spans = timeline(2, 4)
    with styled():
        figure = gantt.draw(spans, "", "measured")
        drawn = gantt.boxes(figure.axes[0], spans, 1e3)
        for span, box, _ in drawn:
            assert box.get_width() == pytest.approx(1e3 * span.seconds)
            assert box.get_x() == pytest.approx(1e3 * (span.start - spans.start))


def test_split_backwards_are_drawn_in_two_colours():
    spans = ratio.ideal(2, 4, "zb-h1", "never")
    assert spans is not None
    with styled():
        figure = gantt.draw(spans, "", "simulated")
        drawn = gantt.boxes(figure.axes[0], spans, 1.0)
        kinds = {span.kind: to_hex(box.get_facecolor()).upper() for span, box, _ in drawn}
        assert kinds == {kind: KINDS[kind].upper() for kind in "FIW"}
        assert len(set(kinds.values())) == 3
        texts = [text.get_text() for text in figure.legends[0].get_texts()]
        assert texts == ["F forward", "I gradient of inputs", "W gradient of weights", "idle"]


def test_the_picture_for_wandb_is_the_report_s():
    picture = gantt.picture(timeline(2, 4), "a run", "measured")
    assert picture.width > picture.height > 100


def test_the_same_figure_has_the_same_bytes(tmp_path):
    written = []
    for attempt in ("a", "b"):
        with styled():
            written.append(
                save(gantt.draw(timeline(2, 1), "title", "measured"), tmp_path / attempt)
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


def test_a_simulated_step_is_not_said_to_be_traced(results, done):
    rows = [of_fidelity(row, "simulated") for row in done]
    captions = {
        fidelity: {caption for _, _, caption in figures.timelines(results, of)}
        for fidelity, of in (("measured", done), ("simulated", rows))
    }
    assert captions == {
        "measured": {
            "One traced step, the one of median length, on the clock that the stages share."
        },
        "simulated": {"One simulated step, on a virtual clock."},
    }


def test_the_breakdown_replays_the_runs_own_schedule(results, done, monkeypatch):
    seen = []
    monkeypatch.setattr(
        bars, "split", lambda timeline, schedule: seen.append(schedule) or dict.fromkeys(PARTS, 0.2)
    )
    bars.shares_of(results, changed(done[-1], schedule="gpipe-late"))
    bars.shares_of(results, changed(done[-1], schedule="ddp"))
    assert (seen[0].name, seen[0].stages, seen[0].micro_batches) == ("gpipe-late", 2, 4)
    assert seen[1] is None
