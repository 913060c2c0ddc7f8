"""The demonstration: its plan, and its table on known numbers."""

import math

import pytest
from recorded import MIB, fill_with, record

from experiments.two_gpu_demo import report as demo
from experiments.two_gpu_demo.runs import experiment
from repro.gpipe.schedule.kinds import make_schedule
from repro.gpipe.schedule.replay import replay
from repro.harness.frame import Frame
from repro.harness.job import Measured
from repro.harness.results import load
from repro.harness.spec import RunSpec
from repro.paper import theory

DRIFT = (1.0, 1.1, 1.2, 1.3, 1.4)  # every round is a bit slower than the one before


def made(run: RunSpec, number: int) -> Measured | None:
    """An ideal step of equal stages; the Transformer's naive runs are missing."""
    if run.model == "transformer" and run.schedule == "naive":
        return None
    schedule = make_schedule(run.schedule, run.K, run.M, run.checkpoint)
    seconds = 0.01 * DRIFT[number] * run.N / run.M / run.K
    timeline = replay(schedule, lambda action: seconds * theory.UNIT_COSTS[action.kind])
    peaks = [(j + 1) * 64 * MIB for j in range(run.K)]
    return Measured(record(timeline, schedule, peak_bytes=peaks, loss=[1.0]), timeline)


def test_one_device_alone_is_refused():
    with pytest.raises(ValueError, match=r"^K = 1: .* need 2 devices or more, .*; try K=2$"):
        experiment(K=1)


def test_speedups_of_several_k_are_over_one_device_at_the_same_m(tmp_path):
    two, four = experiment(K=2), experiment(K=4)
    groups = []
    for group, more in zip(two.groups, four.groups, strict=True):
        added = [run for run in more.runs if run.K == 4]
        groups.append(group.model_copy(update={"runs": (*group.runs, *added)}))
    fill_with(tmp_path, two.model_copy(update={"groups": tuple(groups)}), made, rounds=5)
    (table,) = demo.tables(load(tmp_path))
    shown: Frame = table.shown
    for n, line in enumerate(table.data.to_dict("records")):
        expected = theory.speedup_over_k1(line["K"], line["M"], "early")
        assert line["speedup over one device GPipe"] == pytest.approx(expected)
        assert line["speedup over one device GPipe: low"] == pytest.approx(expected)
        if line["model"] == "timm:resnet50":
            assert line["idle/total naive"] == pytest.approx(1 - 1 / line["K"])
        else:
            assert shown["speedup over one device naive"][n] == "not run"
            assert math.isnan(line["speedup over one device naive"])
    # One device is equally fast at every M here, so that the best M and K are the largest.
    best = f"{theory.speedup_over_k1(4, 32, 'early'):.2f}"
    assert demo.best_against_best(table) == (
        f"Each at its own fastest M, GPipe has {best} times (timm:resnet50) and {best} times "
        "(Transformer)."
    )
