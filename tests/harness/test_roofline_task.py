"""The task "roofline": what it records predicts the same step as a run on that device."""

import pytest

from repro.costs import device
from repro.harness.schema import TrainRound
from repro.harness.spec import RunSpec
from repro.harness.tasks.roofline import predicted
from repro.harness.tasks.simulate import simulated
from repro.models import build
from repro.simulate.step import simulate

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
