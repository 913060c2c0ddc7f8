"""The task "roofline": what it records predicts the same step as a run on that device."""

import pytest

from repro.costs import device
from repro.harness.schema import CalibrateRound, RooflineRound, TrainRound, round_record
from repro.harness.spec import RunSpec
from repro.harness.tasks.roofline import predicted
from repro.harness.tasks.simulate import simulated
from repro.models import build
from repro.simulate import simulate

SMALL = {"L": 2, "d": 16, "H": 32, "heads": 2, "V": 32, "T": 8}


@pytest.mark.parametrize("M", [1, 2, 8])
def test_the_recorded_times_are_those_of_the_roofline(M):
    spec = RunSpec(model="transformer", model_args=SMALL, K=2, M=8, N=8, task="roofline")
    made = predicted(spec, build(spec.model, **SMALL), device.load("v100"), "cpu")
    assert made.sizes == (1, 2, 4, 8)

    step = spec.model_copy(
        update={
            "M": M,
            "task": "train",
            "fidelity": "simulated",
            "profile": "v100",
            "balance": (2, 2),
        }
    )
    costs = made.stages((2, 2), 8 // M)
    record = simulated(step, "cpu").record
    assert isinstance(record, TrainRound)
    assert simulate(step.make_schedule(), costs).step_time == pytest.approx(record.step_s[0])


def test_it_is_measured_and_not_emulated():
    with pytest.raises(ValueError, match="task='roofline' is measured"):
        RunSpec(model="transformer", K=1, M=1, N=1, task="roofline", fidelity="emulated")


def test_a_record_is_told_by_its_task():
    spec = RunSpec(model="transformer", model_args=SMALL, K=1, M=1, N=2, task="roofline")
    made = predicted(spec, build(spec.model, **SMALL), device.load("v100"), "cpu")
    line = {
        "calibration": made,
        "balance": [4],
        "setup_s": 0.1,
        "unit": "x",
        "labels": {},
    }
    assert isinstance(round_record(line), CalibrateRound)
    new = {**line, "task": "roofline", "device": device.load("v100").model_dump()}
    assert isinstance(round_record(new), RooflineRound)
