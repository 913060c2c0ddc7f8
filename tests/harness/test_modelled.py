"""Runs that a cost model times, and real processes that wait as long."""

from pathlib import Path
from typing import Any

import pytest
from fakes import spec
from pydantic import TypeAdapter

from repro.costs import device as devices
from repro.gpipe import make_schedule
from repro.harness.rehearsal import check
from repro.harness.request import Request, Result
from repro.harness.schema import TrainRound
from repro.harness.spec import RunSpec
from repro.harness.tasks import simulate as modelled
from repro.harness.workers import Workers
from repro.simulate.stage_costs import StageCosts
from repro.simulate.step import simulate

TIMED = {"L": 4, "forward_s": 0.25, "backward_s": 0.5, "elements": 16}


def waiting(K: int, M: int, **changed: Any) -> RunSpec:
    fields: dict[str, Any] = {"model": "timed", "model_args": TIMED, "fidelity": "simulated"}
    return RunSpec(K=K, M=M, N=M, **fields | changed)


def device(K: int = 2, M: int = 4, **changed: Any) -> RunSpec:
    return spec(K, M, **{"fidelity": "simulated", "profile": "tpu-v2", **changed})


def line(spec: RunSpec) -> dict[str, Any]:
    """The record of a simulated run as plain data."""
    check([spec])
    measured = modelled.simulated(spec, "cpu")
    assert isinstance(measured.record, TrainRound)
    if measured.timeline is not None:
        assert measured.timeline.step_time == pytest.approx(measured.record.step_s[0])
    return measured.record.model_dump()


def test_a_device_s_stages_give_its_step():
    found = line(device())
    costs = TypeAdapter(StageCosts).validate_python(found["modelled"]["stages"])
    assert simulate(make_schedule("gpipe", 2, 4), costs).step_time == pytest.approx(
        found["step_s"][0]
    )
    assert found["modelled"]["memory"] == devices.load("tpu-v2").memory.value
    assert len(found["peak_bytes"]) == 2
    assert found["labels"]["device"] == "tpu-v2"


def test_the_largest_mini_batch_that_fits():
    some = line(device(2, 2, N=64, memory=2**20))
    more = line(device(2, 2, N=64, memory=2**21))
    assert 2 <= some["modelled"]["batch"] < more["modelled"]["batch"] <= 64
    assert max(some["peak_bytes"]) <= 2**20 < max(more["peak_bytes"]) <= 2**21
    assert line(device(2, 2, N=64, memory=2**40))["modelled"]["batch"] == 64
    nothing = line(device(2, 2, memory=2**10))
    assert (nothing["modelled"]["batch"], nothing["step_s"]) == (0, [])
    assert max(nothing["peak_bytes"]) > 2**10


@pytest.mark.alone
@pytest.mark.filterwarnings("default")  # torch's own, about its process groups
def test_two_processes_take_about_the_simulated_step(tmp_path: Path):
    """Never less; a busy machine may wake them late, so up to half more in the quickest step."""
    short = TIMED | {"forward_s": 0.01, "backward_s": 0.02}
    waits = waiting(2, 4, fidelity="emulated", model_args=short, steps=3)
    with Workers(tmp_path) as workers:
        found = workers.measure(Request(waits), 60)
    assert isinstance(found, Result), found
    assert isinstance(found.record, TrainRound)
    once = line(waiting(2, 4, model_args=short))["step_s"][0]
    assert once <= min(found.record.step_s) < 1.5 * once
