"""Table 2: fidelities side by side, protocols, predictions, what the runtime costs."""

import json
from dataclasses import replace
from typing import Any

import pytest
from matplotlib.colors import to_hex
from modelled import ENDS, FIXED, batch, costs
from recorded import at_scale, cell, changed_runs

from experiments.table2 import report as table2
from experiments.table2.figures import (
    Evidence,
    bars,
    bars_caption,
    best_evidence,
    smaller_models,
)
from experiments.table2.recorded import SIZES, fixed, protocol
from repro.gpipe.schedule.kinds import make_schedule
from repro.report import figures
from repro.report.compare import rows_of
from repro.report.style import FIDELITIES, styled
from repro.simulate import simulate


@pytest.fixture(scope="module")
def made(modelled):
    return {table.name: table for table in table2.tables(modelled)}


def step(K, M, N=32):
    slower = ENDS if K == 8 else 1.0
    return simulate(make_schedule("gpipe", K, M, "always"), costs(K, M, N, slower)).step_time


def test_one_line_a_model_and_m_with_each_fidelity_in_its_column(modelled, made):
    shown = made["table2"].shown
    assert len(shown) == 6
    assert cell(made["table2"], "Transformer", 4, "K=2", "measured").startswith("1.60 [")
    headline = protocol(modelled, "transformer", "half widths, by memory")
    ratio = headline.ratio(8, 4)
    assert cell(made["table2"], "Transformer", 4, "K=8", "simulated") == f"{ratio:.2f}"
    assert cell(made["table2"], "AmoebaNet-D", 4, "K=4", "measured") == "not run"
    assert "emulated" not in {name for _, name in shown.columns}
    note = made["table2"].caption
    assert "Simulated: AmoebaNet-D (L=18, D=256, image=224 on tpu-v2)" in note


def test_two_measured_settings_of_a_model_keep_their_lines(modelled):
    def smaller_at_m4(run):
        return at_scale(run, "smoke") if run.fidelity == "measured" and run.M == 4 else run

    table = table2.table2(changed_runs(modelled, smaller_at_m4))
    titles = list(table.shown["", "model"])
    assert titles.count("AmoebaNet-D") == 3
    assert {title.split(",")[0] for title in titles} == {
        "AmoebaNet-D",
        "Transformer (laptop",
        "Transformer (smoke",
    }


def test_by_memory_is_a_ratio_of_throughput_with_its_n(modelled, made):
    some = protocol(modelled, "amoebanet-d", "by memory")
    base, many = batch("", 2, 1), batch("", 4, 32)
    expected = (many / (step(4, 32, many) + FIXED)) / (base / (step(2, 1, base) + FIXED))
    assert some.ratio(4, 32) == pytest.approx(expected)
    assert some.N(4, 32) == many
    (run,) = rows_of(modelled, group="amoebanet-d-by-memory", K=4, M=32)
    assert modelled.row(run)["speedup_vs_k2m1"] == pytest.approx(expected)
    shown = made["table2_protocols"].shown
    line = shown[
        (shown["model"] == "Transformer") & (shown["K"] == "2") & (shown["M"] == "4")
    ].iloc[0]
    assert line["by memory"] == "nothing fits"
    shown = made["table2_predictions"].shown
    line = shown[(shown["model"] == "Transformer") & (shown["K"] == "2") & (shown["M"] == "4")]
    assert list(line["N"]) == ["4"]


@pytest.fixture(scope="module")
def small(modelled):
    """The same, modelled with small models at scale smoke."""

    def smaller(run):
        if run.fidelity == "measured":
            return run
        spec = run.spec.model_copy(update={"model_args": {"L": 3}})
        rounds = tuple(replace(one, record=_with_kibibytes(one.record)) for one in run.rounds)
        return replace(at_scale(run, "smoke"), spec=spec, rounds=rounds)

    return changed_runs(modelled, smaller)


def _with_kibibytes(record):
    return record.model_copy(update={"peak_bytes": [peak / 1024 for peak in record.peak_bytes]})


def test_another_size_is_in_the_title_and_nothing_is_argued_from_it(small):
    tables = {table.name: table for table in table2.tables(small)}
    assert set(tables["table2_predictions"].shown["verdict"]) == {
        "baseline",
        "not tested here: our models are smaller",
    }
    names = ("predictions", "causes", "null", "divisions", "inverse", "protocols")
    for name in names:
        title = tables[f"table2_{name}"].title
        assert title.endswith("(smoke size, which shows nothing about the paper)"), name
    assert "Simulated: AmoebaNet-D (L=3 on tpu-v2); " in tables["table2"].caption


def test_pictures_of_another_size_say_so(small):
    with styled():
        figure = bars(small, [])
        assert figure is not None
        words = [text.get_text() for text in figure.legends[0].get_texts()]
        assert words[1] == "simulated, smoke size"
        assert "simulated, smoke size: L=3" in figure.axes[0].get_title(loc="left")
    assert "at smoke size, which shows nothing about the paper" in bars_caption(small)


def test_captions_of_the_papers_size(modelled):
    assert "at the paper's size" in bars_caption(modelled)
    assert "shows nothing" not in bars_caption(modelled)


def test_a_dot_belongs_to_the_group_at_its_left(modelled):
    with styled():
        figure: Any = bars(modelled, [])
        axes = figure.axes[1]
        dot = (
            next(one for one in axes.containers if hasattr(one, "has_yerr")).lines[0].get_xdata()[0]
        )
        edge = max(bar.get_x() + bar.get_width() for bar in axes.patches if bar.get_x() < dot)
        assert edge < dot < round(dot) + 0.4


def test_long_titles_are_wrapped(small):
    def with_many_arguments(run):
        arguments = dict.fromkeys("abcdefghijklmnop", 1024)
        return replace(run, spec=run.spec.model_copy(update={"model_args": arguments}))

    found = changed_runs(small, with_many_arguments)
    with styled():
        figure: Any = bars(found, [])
        figure.draw_without_rendering()
        for axes in figure.axes:
            assert "\n" in axes.get_title(loc="left")
            assert axes._left_title.get_window_extent().x1 <= figure.bbox.x1


def test_bars_are_of_the_papers_size_and_smaller_measured_cells_dots(modelled):
    # Measured too, but of a smaller model. What is emulated shows our runtime and not a TPU.
    assert best_evidence(modelled, "transformer", 2, 4).fidelity == "simulated"
    smaller = smaller_models(modelled, "transformer")
    scale, ratio = smaller[2, 4]
    assert (scale, ratio.value) == ("laptop", pytest.approx(1.6, abs=0.005))
    assert (8, 4) not in smaller
    eight = best_evidence(modelled, "transformer", 8, 4)
    headline = protocol(modelled, "transformer", "half widths, by memory")
    assert (eight.fidelity, eight.ratio) == ("simulated", pytest.approx(headline.ratio(8, 4)))
    assert eight.fits
    assert best_evidence(modelled, "transformer", 3, 4).fidelity == Evidence().fidelity
    with styled():
        figure = bars(modelled, [])
        assert figure is not None
        colours = [to_hex(bar.get_facecolor()).upper() for bar in figure.axes[1].patches]
        assert colours.count(FIDELITIES["simulated"]) == 9  # every cell, measured or not
        assert len(figure.axes[1].containers) > 9
        words = [text.get_text() for text in figure.legends[0].get_texts()]
        ours = [
            "simulated, the paper's size or half of Table 1's widths",
            "ideal",
            "measured, laptop size: a smaller model",
        ]
        assert words == ["quoted", *ours]
        assert figure.axes[1].get_title(loc="left") == "Transformer"


def test_measured_at_the_papers_size_is_the_best_evidence(modelled):
    def of_papers_size(run):
        if run.model != "transformer" or run.fidelity != "measured":
            return run
        return replace(run, spec=run.spec.model_copy(update={"model_args": SIZES["transformer"]}))

    found = changed_runs(modelled, of_papers_size)
    best = best_evidence(found, "transformer", 2, 4)
    assert (best.fidelity, best.ratio) == ("measured", pytest.approx(1.6, abs=0.005))
    assert smaller_models(found, "transformer") == {}


def test_varied_protocols_stay_out_of_the_pictures_of_settings(modelled):
    rows = rows_of(modelled)
    assert {run.group for run in rows} - {run.group for run in fixed(rows)} == {
        "amoebanet-d-by-memory",
        "amoebanet-d-share",
        "amoebanet-d-variance",
        "transformer-by-memory",
        "transformer-narrow-by-memory",
    }


@pytest.fixture(scope="module")
def drawn(modelled, tmp_path_factory):
    return figures.draw_all(modelled, tmp_path_factory.mktemp("figures"))


@pytest.mark.slow
def test_few_pictures_and_the_bars_first(drawn):
    names = [one.stem.name for one in drawn]
    assert names == ["table2_bars", "table2_divisions", "table2_figure2"]


def test_the_trace_has_every_fidelity_by_name(modelled, tmp_path):
    paths = figures.traces(modelled, tmp_path)
    events = json.loads(paths["table2"].read_text(encoding="utf-8"))["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    for fidelity in ("measured", "emulated", "simulated"):
        assert any(name.endswith(f"({fidelity})") for name in names), fidelity
    done = rows_of(modelled, status="done")
    assert len(names) == len(set(names)) == sum(modelled.timeline(row) is not None for row in done)


def test_tables_have_their_three_files(made, tmp_path):
    for table in made.values():
        assert [path.suffix for path in table.write(tmp_path)] == [".csv", ".md", ".tex"]
