"""The errors of the cost model, on made-up steps that are a known part off."""

from math import exp, log
from typing import Any

import pytest
from pydantic import TypeAdapter
from recorded import fill_with, record, timeline

from experiments.costs import report
from experiments.costs.cells import cells
from experiments.costs.error import ErrorBar, error_bar
from experiments.costs.runs import (
    SPEED,
    experiment,
    lingvo_memory,
    torchgpipe_memory,
    with_ends,
)
from repro.costs import device
from repro.gpipe.schedule.kinds import make_schedule
from repro.harness.frame import select
from repro.harness.job import Measured
from repro.harness.results import Results, load
from repro.harness.schema import round_record
from repro.harness.spec import RunSpec
from repro.report.table import Table
from repro.simulate import Calibration, StageCosts, simulate

FASTER = 1.5  # than every published step, but the base cells
# Seconds of each of two layers, so that a stage of one layer takes F, R, B = 1, 1, 2.
F, R, B = [1.0, 1.0], [1.0, 1.0], [2.0, 2.0]
SLOWER = (1.1, 1.2, 1.3)  # measured steps over predicted ones, a round each
MODEL: dict[str, Any] = {"model": "transformer", "model_args": {"L": 0}, "N": 8, "steps": 1}


def simulated(spec: RunSpec, step_s: float, peaks: list[int] | None = None) -> Measured:
    """A simulated run with this step."""
    stages = StageCosts.uniform(spec.K).plain()
    modelled = {"batch": spec.N, "stages": stages, "rungs": {}, "memory": 16e9}
    spans = timeline(spec.K, 1)
    schedule = make_schedule("gpipe", spec.K, 1)
    return Measured(record(spans, schedule, step_s=[step_s], modelled=modelled, peak_bytes=peaks))


def published(spec: RunSpec) -> Measured | None:
    """The run of a published step: right for each base, `FASTER` for all others."""
    for rows in SPEED.values():
        for index, (other, speed) in enumerate(rows()):
            if spec == other:
                # Lingvo's has no unit, so it stands for any number of examples per second.
                return simulated(spec, spec.N / (speed * (FASTER if index else 1.0)))
    for other, peer in torchgpipe_memory():
        if spec == other:
            quoted = peer.values["model_memory_gib"], peer.values["peak_activation_gib"]
            gib = sum(value or 0.0 for value in quoted)
            return simulated(spec, 1.0, [round(gib * 2**30 / spec.K)] * spec.K)
    if spec in lingvo_memory():
        largest = 15 * 10**9 if spec.model_args["L"] < 95 else 17 * 10**9
        return simulated(spec, 1.0, [10**9] * 7 + [largest])
    return None


def calibration() -> dict[str, Any]:
    rows = {"forward": [F] * 2, "recompute": [R] * 2, "backward": [B] * 2}
    link = {"latency": 0.0, "bytes_per_second": None, "overlap": True}
    free = {"update": [0.0, 0.0], "activations": [0.0], "gradients": [0.0], "link": link}
    return {"sizes": [2, 8], **rows, **free}


def measured(spec: RunSpec, number: int) -> Measured | None:
    """Rates, and steps that are `SLOWER` than these rates predict; twice as slow for M=4."""
    balance = [1, 1] if spec.K == 2 else [2]
    common = {"balance": balance, "setup_s": 0.1, "unit": "x", "labels": {}}
    if spec.task == "roofline":
        plain = device.load("v100").model_dump()
        line = {"task": "roofline", "device": plain, "calibration": calibration(), **common}
        return Measured(round_record(line))
    cost = TypeAdapter(Calibration).validate_python(calibration()).stages(balance, spec.N // spec.M)
    step_s = simulate(spec.make_schedule(), cost).step_time * SLOWER[number]
    step_s *= 2 if spec.M == 4 else 1
    spans, schedule = timeline(spec.K, 1), make_schedule("gpipe", spec.K, 1)
    return Measured(record(spans, schedule, step_s=[step_s], loss=[1.0], balance=balance))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    path = tmp_path_factory.mktemp("results")
    plan = experiment()
    here = plan.groups[-1].name

    def made(spec: RunSpec, number: int) -> Measured | None:
        in_group = spec in next(group for group in plan.groups if group.name == here).runs
        if in_group:
            return measured(spec, number)
        return published(spec) if number == 0 else None

    fill_with(path, plan, made, rounds=len(SLOWER))
    return load(path)


def table(results: Results, name: str) -> Table:
    (chosen,) = [table for table in report.tables(results) if table.name == name]
    return chosen


def test_ratios_are_over_the_first_published_cell_of_the_same_model(results):
    found = select(cells(results), source="a")
    assert len(found) == 9 + 5
    bases, others = select(found, is_base=True), select(found, is_base=False)
    assert list(bases["absolute"]) == [pytest.approx(0.0)] * 2
    assert bases["ratio"].isna().all()
    for column in ("absolute", "ratio"):
        assert list(others[column]) == [pytest.approx(FASTER - 1)] * 12


def test_lingvo_published_ratios_only(results):
    found = select(cells(results), source="b")
    assert list(found["K"]) == [1, 2, 4, 8]
    assert found["absolute"].isna().all()
    assert found["ratio"].iloc[3] == pytest.approx(FASTER - 1)


def test_measured_steps_are_predicted_by_the_rates_of_their_own_round(results):
    found = select(cells(results), source="c").set_index(["K", "M"])
    assert set(found.index) == {(K, M) for K in (1, 2) for M in (1, 4, 32)}
    # The steps are 1.1, 1.2 and 1.3 times as long as predicted; the median counts.
    assert found.loc[(1, 1), "absolute"] == pytest.approx(0.2)
    assert found.loc[(2, 1), "ratio"] == pytest.approx(0.0)
    assert found.loc[(2, 4), "ratio"] == pytest.approx(1.0)
    assert found.loc[(2, 4), "absolute"] == pytest.approx(1.4)


def test_the_error_bar_is_of_logarithms_and_counts_no_base(results):
    bar = error_bar(results)
    assert bar is not None
    assert bar.cells == 8 + 4 + 3 + 5
    assert bar.worst == pytest.approx(log(2))
    assert bar.median == pytest.approx(log(FASTER))
    assert bar.ends(3.0) == (pytest.approx(3 / FASTER), pytest.approx(3 * FASTER))
    low, high = bar.ends(3.0, "worst")
    assert (low, high) == (pytest.approx(1.5), pytest.approx(6.0))
    absolute = error_bar(results, "throughput")
    assert absolute is not None
    assert exp(absolute.worst) == pytest.approx(2.4)


def test_half_as_fast_and_twice_as_fast_are_equally_wrong():
    low, high = ErrorBar(log(2), log(2), 1).ends(1.0)
    assert (low, high) == (pytest.approx(0.5), pytest.approx(2.0))


def test_memory_is_compared_without_weights_and_says_what_fits(results):
    rows = table(results, "costs_memory").data.to_dict("records")
    assert len(rows) == 4 + 8
    for row in rows[:4]:
        assert row["error (%)"] == pytest.approx(0, abs=0.5)
    assert [row["fits"] for row in rows[4:]] == ["yes", "no", "no", "no"] * 2


def test_without_results_there_is_no_error_bar(nothing):
    assert error_bar(nothing) is None


def test_lingvo_s_94_layers_are_cut_as_published():
    assert with_ends([10, *[12] * 7]) == (11, 12, 12, 12, 12, 12, 12, 13)
    assert [spec.model_args["L"] for spec in lingvo_memory()] == [94, 95, 110, 118] * 2


def test_published_runs_are_as_published():
    (first, speed), *_ = SPEED["torchgpipe-amoebanet-d"]()
    assert (first.K, first.M, first.N, first.balance) == (2, 1, 96, (7, 17))
    assert (first.checkpoint, first.profile, speed) == ("always", "p40", 26.733)
    resnet = [spec for spec, _ in SPEED["torchgpipe-resnet101"]()]
    assert [(spec.N, spec.M, spec.checkpoint) for spec in resnet][:3] == [
        (118, 1, "never"),
        (220, 2, "except_last"),
        (25005, 1667, "except_last"),
    ]
