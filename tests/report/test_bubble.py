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


@pytest.mark.parametrize("K", [2, 4, 8, 16])
def test_the_least_m_with_a_negligible_bubble(K):
    M = bubble.least_negligible_m(K)
    assert theory.bubble(K, M, "early") <= bubble.NEGLIGIBLE < theory.bubble(K, M - 1, "early")


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
