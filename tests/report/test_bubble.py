"""The bubble's tables and pictures; emulated steps are a tenth longer than simulated ones."""

from typing import Any

import pytest
from recorded import fill_with, record

from experiments.bubble import report as bubble
from repro.gpipe.schedule.kinds import make_schedule
from repro.harness.job import Measured
from repro.harness.results import Results, load
from repro.harness.spec import Experiment, Group, RunSpec
from repro.harness.tasks.simulate import simulated
from repro.paper import theory
from repro.report.compare import rows_of
from repro.report.style import styled
from repro.report.table import Table
from repro.simulate import StageCosts, simulate

F = 0.01


def spec(K: int, M: int, slow: int | None = None, **changed: Any) -> RunSpec:
    forward: Any = [F * (1.5 if j == slow else 1) for j in range(K)] if slow is not None else F
    backward: Any = [2 * f for f in forward] if slow is not None else 2 * F
    args = {"L": K, "forward_s": forward, "backward_s": backward, "elements": 16}
    given: dict[str, Any] = {"fidelity": "simulated"} | changed
    return RunSpec(model="timed", model_args=args, K=K, M=M, N=M, balance="uniform", **given)


def groups(fidelity: Any) -> tuple[Group, ...]:
    plain = [spec(K, M, fidelity=fidelity) for K, M in ((2, 1), (2, 8), (4, 4), (4, 16), (8, 4))]
    slow = [spec(4, 16, stage, fidelity=fidelity) for stage in (0, 2, 3)]
    return Group(name=fidelity, runs=tuple(plain)), Group(
        name=f"slow-{fidelity}", runs=(spec(4, 16, fidelity=fidelity), *slow)
    )


def made(run: RunSpec, number: int) -> Measured | None:
    """Simulated as the harness does it; emulated a tenth longer, and 0.5 % more each round."""
    if run.fidelity == "simulated":
        return simulated(run, "cpu")
    if run.K == 8:
        return None
    forward = run.model_args["forward_s"]
    times = [
        f * (1.1 + 0.005 * number)
        for f in (forward if isinstance(forward, list) else [forward] * run.K)
    ]
    schedule = make_schedule(run.schedule, run.K, run.M, run.checkpoint)
    timeline = simulate(
        schedule, StageCosts(tuple(times), tuple(times), tuple(2 * f for f in times))
    )
    return Measured(record(timeline, schedule, loss=[1.0]), timeline)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    path = tmp_path_factory.mktemp("results")
    late = Group(name="late", runs=tuple(spec(K, 4 * K, schedule="gpipe-late") for K in (2, 4)))
    plan = Experiment(
        name="bubble",
        title="Idle",
        question="?",
        groups=(*groups("simulated"), late, *groups("emulated")),
    )
    fill_with(path, plan, made, rounds=5)
    return load(path)


def lines(table: Table) -> list[Any]:
    assert table.data is not None
    return table.data.to_dict("records")


def test_theory_and_both_clocks_stand_side_by_side(results):
    table = bubble.idle(results)
    found = {(one["", "K"], one["", "M"]): one for one in lines(table)}
    for (K, M), one in found.items():
        assert one["theory", "plain"] == pytest.approx((K - 1) / (M + K - 1))
        assert one["theory", "early"] == pytest.approx(3 * (K - 1) / (4 * M + 3 * (K - 1)))
        assert one["simulated", "idle/total"] == pytest.approx(one["theory", "early"])
    assert found[4, 16]["emulated", "idle/total"] == pytest.approx(9 / 73)
    assert found[4, 16]["emulated", "step over early"] == pytest.approx(1.11)
    assert found[4, 16]["emulated", "above early"] == pytest.approx(0, abs=1e-6)
    assert dict(zip(found, table.shown["", "M"], strict=True))[2, 1] == "1 (naive)"
    assert dict(zip(found, table.shown["", "M"], strict=True))[4, 16] == "16 (M=4K)"
    assert dict(zip(found, table.shown["emulated", "idle/total"], strict=True))[8, 4] == "not run"


def test_at_4k_the_bubble_is_not_negligible(results):
    table = bubble.at_4k(results)
    two, four = lines(table)
    assert [round(100 * one["theory", "plain"], 1) for one in (two, four)] == [11.1, 15.8]
    assert [round(100 * one["theory", "early"], 1) for one in (two, four)] == [8.6, 12.3]
    for one in (two, four):
        assert one["simulated", "late"] == pytest.approx(one["theory", "plain"])
        assert one["", "negligible?"] == "not reproduced"
    assert table.shown["", "M for 5%"].tolist()[0] == "15, 7.5 K"


@pytest.mark.parametrize("K", [2, 4, 8, 16])
def test_the_least_m_with_a_negligible_bubble(K):
    M = bubble.least_negligible_m(K)
    assert theory.bubble(K, M, "early") <= bubble.NEGLIGIBLE < theory.bubble(K, M - 1, "early")


def test_a_slow_stage_lies_between_the_mean_and_the_slowest(results):
    table = bubble.slow(results)
    assert table.shown["", "slow stage"].tolist() == [
        "first (stage 0)",
        "middle (stage 2)",
        "last (stage 3)",
    ]
    for one in lines(table):
        assert one["bounds", "mean"] == pytest.approx(1.125)
        assert 1.125 < one["simulated", "step over step"] < 1.5
        assert one["emulated", "step over step"] == pytest.approx(
            one["simulated", "step over step"]
        )
        assert one["emulated", "rounds"] == 5


def test_pictures_are_its_own_and_few(results):
    done = rows_of(results, status="done")
    with styled():
        found: dict[str, Any] = {name: figure for name, figure, _ in bubble.figures(results, done)}
        assert list(found) == ["curves", "slow"]
        curves: Any = found["curves"]
        panel = next(axes for axes in curves.axes if axes.get_title("left") == "K=4")
        hollow = next(drawn for drawn in panel.get_lines() if drawn.get_marker() == "^")
        assert list(hollow.get_ydata()) == pytest.approx([36, 100 * 9 / 73])
        assert any(text.get_text() == "M=4K=16" for text in panel.texts)
        titles = [axes.get_title("left").split(":")[0] for axes in found["slow"].axes]
        assert titles == ["emulated", "simulated"]
