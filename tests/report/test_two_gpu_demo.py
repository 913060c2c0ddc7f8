"""The demonstration: its plan at every scale, its table and its figures on known numbers."""

import math
from typing import Any

import pytest
from recorded import MIB, fill_with, record

from experiments.methods.recorded import method_of
from experiments.two_gpu_demo import report as demo
from experiments.two_gpu_demo.runs import STRATEGIES, experiment
from repro.gpipe.schedule.kinds import make_schedule
from repro.gpipe.schedule.replay import replay
from repro.harness.job import Measured
from repro.harness.results import Results, load
from repro.harness.spec import Experiment, RunSpec, Scale
from repro.paper import theory
from repro.report.compare import rows_of
from repro.report.style import styled
from repro.report.tables import all_tables

SCALES: tuple[Scale, ...] = ("smoke", "laptop", "node", "paper")
DRIFT = (1.0, 1.1, 1.2, 1.3, 1.4)  # every round is a bit slower than the one before
UNIT = 0.01  # seconds of F of the whole model on one example


def made(run: RunSpec, number: int) -> Measured | None:
    """An ideal step of equal stages; the Transformer's naive runs are missing."""
    if run.model == "transformer" and run.schedule == "naive":
        return None
    schedule = make_schedule(run.schedule, run.K, run.M, run.checkpoint)
    seconds = UNIT * DRIFT[number] * run.N / run.M / run.K
    timeline = replay(schedule, lambda action: seconds * theory.UNIT_COSTS[action.kind])
    peaks = [(j + 1) * 64 * MIB for j in range(run.K)]
    return Measured(record(timeline, schedule, peak_bytes=peaks, loss=[1.0]), timeline)


def recorded(path: Any, plan: Experiment) -> Results:
    fill_with(path, plan, made, rounds=len(DRIFT))
    return load(path)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return recorded(tmp_path_factory.mktemp("results"), experiment())


def lines(results: Results) -> dict[tuple[Any, ...], Any]:
    """(model, K, M) -> the line of the table as values."""
    (table,) = demo.tables(results)
    records: list[Any] = table.data.to_dict("records")
    return {(line["", "model"], line["", "K"], line["", "M"]): line for line in records}


@pytest.mark.parametrize("scale", SCALES)
def test_every_scale_has_three_strategies_for_each_m_and_model(scale):
    plan = experiment(scale)
    assert scale in plan.minutes
    assert {group.runs[0].model for group in plan.groups} == {"timm:resnet50", "transformer"}
    for group in plan.groups:
        runs = [(run.M, run.K) for run in group.runs]
        Ms = sorted({M for M, _ in runs})
        assert runs == [(M, K) for M in Ms for K in (1, 2, 2)]
        assert {run.N for run in group.runs} == {group.runs[0].N}
        if scale != "smoke":
            assert Ms == [1, 2, 4, 8, 16, 32]
            # An interval needs five rounds; ResNet-50 on a CPU has fewer.
            is_slow = scale == "laptop" and group.name == "timm-resnet50"
            assert (group.rounds or 0) >= 5 or is_slow
        if scale in ("node", "paper"):
            assert group.runs[0].N == 128


def test_k_m_and_checkpoint_are_a_student_s_choice():
    plan = experiment("smoke", K=4, M=(2, 8), checkpoint="never")
    runs = [run for group in plan.groups for run in group.runs]
    assert {run.K for run in runs} == {1, 4}
    assert {run.M for run in runs} == {2, 8}
    assert {run.checkpoint for run in runs} == {"never"}


def test_one_device_alone_is_refused():
    with pytest.raises(ValueError, match=r"^K = 1: .* need 2 devices or more, .*; try K=2$"):
        experiment(K=1)


def test_a_run_tells_its_strategy(results):
    found = {(run.K, run.schedule): method_of(run) for run in results.runs}
    assert found == {(1, "gpipe"): "single", (2, "naive"): "naive", (2, "gpipe"): "gpipe"}
    assert tuple(found.values()) == STRATEGIES


def test_speedups_are_over_one_device_at_the_same_m(results):
    for (model, K, M), line in lines(results).items():
        expected = theory.speedup_over_k1(K, M, "early")
        assert line["speedup over one device", "GPipe"] == pytest.approx(expected)
        assert line["speedup over one device", "GPipe: low"] == pytest.approx(expected)
        assert line["examples/s", "one device"] == pytest.approx(1 / (4 * UNIT * DRIFT[2]))
        assert line["idle/total", "GPipe"] == pytest.approx(theory.bubble(K, M, "early"))
        if model == "timm:resnet50":
            # One of two devices works at a time, and it recomputes after the gradient came.
            assert line["speedup over one device", "naive"] == pytest.approx(1)
            assert line["idle/total", "naive"] == pytest.approx(1 / 2)


def test_a_strategy_that_was_not_run_says_so(results):
    (table,) = demo.tables(results)
    shown = table.shown[table.shown["", "model"] == "Transformer"]
    assert set(shown["examples/s", "naive"]) == {"not run"}
    assert set(shown["speedup over one device", "naive"]) == {"not run"}
    assert "not run" not in set(shown["examples/s", "GPipe"])


def test_each_device_has_its_peak(results):
    (table,) = demo.tables(results)
    first: Any = table.shown.iloc[0]
    assert first["peak of each device (MiB)", "one device"] == "64"
    assert first["peak of each device (MiB)", "GPipe"] == "64, 128"
    line = lines(results)["timm:resnet50", 2, 1]
    assert line["peak of the fullest (MiB)", "GPipe"] == pytest.approx(128)


def test_few_rounds_have_no_interval(tmp_path):
    fill_with(tmp_path, experiment("smoke"), made, rounds=1)
    for line in lines(load(tmp_path)).values():
        assert line["speedup over one device", "GPipe"] > 1
        assert math.isnan(line["speedup over one device", "GPipe: low"])


def test_several_k_stand_in_one_table_and_figure(tmp_path):
    two, four = experiment(K=2), experiment(K=4)
    groups = []
    for group, more in zip(two.groups, four.groups, strict=True):
        added = [run for run in more.runs if run.K == 4]
        groups.append(group.model_copy(update={"runs": (*group.runs, *added)}))
    results = recorded(tmp_path, two.model_copy(update={"groups": tuple(groups)}))
    assert {K for _, K, _ in lines(results)} == {2, 4}
    for (_, K, M), line in lines(results).items():
        expected = theory.speedup_over_k1(K, M, "early")
        assert line["speedup over one device", "GPipe"] == pytest.approx(expected)
    with styled():
        done = rows_of(results, status="done")
        figures = {name: figure for name, figure, _ in demo.figures(results, done)}
        curves: Any = figures["curves"]
        memory = curves.axes[1]
        labels = {line.get_label() for line in memory.get_lines()}
    assert labels == {"one device", "naive, K=2", "GPipe, K=2", "naive, K=4", "GPipe, K=4"}


def test_the_figures_a_teacher_shows(results):
    done = rows_of(results, status="done")
    with styled():
        found: dict[str, Any] = {}
        for name, figure, caption in demo.figures(results, done):
            assert caption.count(". ") <= 1, "at most two sentences"
            found[name] = figure
        assert list(found) == ["curves", "timeline"]
        labels = [text.get_text() for text in found["curves"].legends[0].get_texts()]
        assert labels == ["GPipe, K=2, ideal", "one device", "naive, K=2", "GPipe, K=2"]
        resnet = found["curves"].axes[0]
        ideal = next(line for line in resnet.get_lines() if line.get_linestyle() == ":")
        measured = next(
            bar.lines[0] for bar in resnet.containers if bar.get_label() == "GPipe, K=2"
        )
        assert list(measured.get_ydata()) == pytest.approx(list(ideal.get_ydata()))
        # The Transformer's naive steps are missing, so there is nothing to compare with.
        assert found["timeline"].get_suptitle().startswith("timm:resnet50")
        above, below = found["timeline"].axes
        assert above.get_xlim() == below.get_xlim()
        assert above.get_title("left").startswith("naive: ")
        assert "50.0% idle" in above.get_title("left")


def test_the_report_has_the_table(results):
    names = {table.name for table in all_tables(results)}
    assert {"two_gpu_demo", "memory"} <= names


def test_the_sentence_does_not_take_a_slow_single_device_for_the_only_one(results):
    (table,) = demo.tables(results)
    said = demo.best_against_best(table)
    # One device is equally fast at every M here, so that the best M is the largest.
    best = f"{theory.speedup_over_k1(2, 32, 'early'):.2f}"
    assert said == (
        f"Each at its own fastest M, GPipe has {best} times (timm:resnet50) and {best} times "
        "(Transformer)."
    )


def test_where_one_device_was_not_run_there_is_no_gain_over_it(tmp_path):
    fill_with(
        tmp_path,
        experiment("smoke"),
        lambda run, number: made(run, number) if run.K > 1 else None,
        rounds=1,
    )
    (table,) = demo.tables(load(tmp_path))
    assert demo.best_against_best(table) == ""
