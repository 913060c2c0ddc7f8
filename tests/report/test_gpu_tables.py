"""What one GPU measures for the cost model: made-up records of a machine with an H200."""

from pathlib import Path

import pytest
from pydantic import TypeAdapter
from recorded import fill_with, record, timeline

from experiments.costs.cells import cells, profiles_of
from experiments.costs.runs import experiment as costs
from repro.gpipe.schedule.kinds import make_schedule
from repro.harness.job import Measured
from repro.harness.machine import TF32, Machine
from repro.harness.results import Results, load
from repro.harness.spec import RunSpec, Scale
from repro.simulate.stage_costs import StageCosts

H200 = Machine("cuda", "NVIDIA H200", 1, "gloo", "2.15.0", TF32)
CPU = Machine("cpu", "Test CPU", 2, "shm", "2.15.0")
SLOWER = 1.25  # measured steps over those that the H200's profile gives; 2.0 for the H100's
NEVER = 0.75  # a step without recomputation over one with it


def step(spec: RunSpec) -> float:
    """Seconds by the H200's profile."""
    return spec.M * (NEVER if spec.checkpoint == "never" else 1.0)


def cost_record(spec: RunSpec, _round: int) -> Measured:
    spans, schedule = timeline(spec.K, 1), make_schedule("gpipe", spec.K, 1)
    if spec.fidelity == "simulated":
        seconds = step(spec) * (2.0 / SLOWER if spec.profile == "h100" else 1.0)
        each = (1.0,) * spec.K
        costs = StageCosts(each, each, each)
        stages = TypeAdapter(StageCosts).dump_python(costs, mode="json")
        modelled = {"batch": spec.N, "stages": stages, "rungs": {}, "memory": 141e9}
        return Measured(record(spans, schedule, step_s=[seconds], modelled=modelled))
    balance = [8 if spec.model == "amoebanet-d" else 4]
    seconds = step(spec) * SLOWER
    return Measured(record(spans, schedule, step_s=[seconds], loss=[1.0], balance=balance))


def cost_results(path: Path, machine: Machine, scale: Scale) -> Results:
    fill_with(path, costs(scale), cost_record, place=(machine, scale))
    return load(path)


def test_a_gpu_s_steps_are_held_against_its_own_profile(tmp_path: Path):
    judged = cells(cost_results(tmp_path, H200, "gpu"))
    assert set(judged["source"]) == {"d"}
    assert len(judged) == 2 * 3 * 2
    assert list(judged["absolute"]) == [pytest.approx(SLOWER - 1)] * len(judged)


def test_a_rehearsal_counts_for_no_error(tmp_path: Path):
    from experiments.costs.error import meaning

    results = cost_results(tmp_path, CPU, "gpu-dry")
    assert set(cells(results)["source"]) == {"rehearsal"}
    assert not meaning(results)


@pytest.mark.parametrize(
    ("device", "profiles"),
    [
        ("NVIDIA H200", ["h200"]),
        ("NVIDIA H100 80GB HBM3", ["h100"]),
        ("NVIDIA H100 PCIe", []),
        ("NVIDIA GH200 480GB", []),
        ("NVIDIA A100-SXM4-80GB", []),
    ],
)
def test_a_profile_is_of_one_chip_and_module(device: str, profiles: list[str]):
    assert profiles_of(device) == profiles
