"""What one GPU measures, in the report: made-up records of a machine with an H200."""

from pathlib import Path
from typing import Any

import pytest
from recorded import fill_with, record, timeline

from experiments.costs import gpu as costs_gpu
from experiments.costs.cells import cells, profiles_of
from experiments.costs.runs import experiment as costs
from experiments.table1 import gpu as table1_gpu
from experiments.table1.runs import experiment as table1
from repro.gpipe.schedule.kinds import make_schedule
from repro.harness.job import Measured
from repro.harness.machine import TF32, Machine
from repro.harness.results import Results, load
from repro.harness.schema import round_record
from repro.harness.spec import RunSpec, Scale
from repro.report.table import Table
from repro.simulate import StageCosts

H200 = Machine("cuda", "NVIDIA H200", 1, "gloo", "2.15.0", TF32)
CPU = Machine("cpu", "Test CPU", 2, "shm", "2.15.0")
SLOWER = 1.25  # measured steps over those that the H200's profile gives; 2.0 for the H100's
NEVER = 0.75  # a step without recomputation over one with it


def shown(table: Table, column: str | tuple[str, str]) -> list[Any]:
    return [row[column] for row in table.data.to_dict("records")]


# Costs.


def step(spec: RunSpec) -> float:
    """Seconds by the H200's profile."""
    return spec.M * (NEVER if spec.checkpoint == "never" else 1.0)


def cost_record(spec: RunSpec, _round: int) -> Measured:
    spans, schedule = timeline(spec.K, 1), make_schedule("gpipe", spec.K, 1)
    common = {"balance": [1] * spec.K, "setup_s": 0.1, "unit": "x", "labels": {}}
    if spec.task == "calibrate":
        layers = (spec.model == "amoebanet-d" and 8) or 4
        rows = {kind: [[2.0] * layers] * 2 for kind in ("forward", "recompute", "backward")}
        link = {"latency": 0.0, "bytes_per_second": None, "overlap": True}
        ends = {"activations": [0.0] * (layers - 1), "gradients": [0.0] * (layers - 1)}
        calibration = {"sizes": [1, 128], **rows, "update": [0.0] * layers, **ends, "link": link}
        return Measured(round_record({"task": "calibrate", "calibration": calibration, **common}))
    if spec.fidelity == "simulated":
        seconds = step(spec) * (2.0 / SLOWER if spec.profile == "h100" else 1.0)
        stages = StageCosts.uniform(spec.K).plain()
        modelled = {"batch": spec.N, "stages": stages, "rungs": {}, "memory": 141e9}
        return Measured(record(spans, schedule, step_s=[seconds], modelled=modelled))
    return Measured(record(spans, schedule, step_s=[step(spec) * SLOWER], loss=[1.0], balance=[1]))


def cost_results(path: Path, machine: Machine, scale: Scale) -> Results:
    fill_with(path, costs(scale), cost_record, place=(machine, scale))
    return load(path)


def test_a_gpu_s_steps_are_held_against_its_own_profile(tmp_path: Path):
    judged = cells(cost_results(tmp_path, H200, "gpu"))
    assert {cell.source for cell in judged} == {"d"}
    assert len(judged) == 2 * 3 * 2
    assert all(cell.absolute_error == pytest.approx(SLOWER - 1) for cell in judged)


def test_a_gpu_without_a_profile_is_held_against_none(tmp_path: Path):
    other = Machine("cuda", "NVIDIA A100", 1, "gloo", "2.15.0", TF32)
    assert cells(cost_results(tmp_path, other, "gpu")) == []


def test_a_rehearsal_counts_for_no_error(tmp_path: Path):
    from experiments.costs.error import error_bar

    results = cost_results(tmp_path, CPU, "gpu-dry")
    assert {cell.source for cell in cells(results)} == {"rehearsal"}
    assert error_bar(results) is None


def test_stages_and_recomputation(tmp_path: Path):
    results = cost_results(tmp_path, H200, "gpu")
    stages = costs_gpu.stages(results)
    assert len(stages.data) == 8 + 4
    # A profile's stage takes 1 second forward, 2 back; each measured layer takes 2.
    assert shown(stages, ("F (ms)", "error (%)")) == [pytest.approx(-50)] * 12
    assert shown(stages, ("B (ms)", "error (%)")) == [pytest.approx(0)] * 12
    shares = shown(costs_gpu.recomputation(results), "share of the step (%)")
    assert shares == [pytest.approx(100 * (1 - NEVER))] * 6


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


# Table 1.


def cut(spec: RunSpec, parameters: int) -> dict[str, Any]:
    stages = [{"at": "B0", "total": 10**9, "parameters": 4, "optimizer": 8}] * spec.K
    args = {"L": 1, "D": 1, **spec.model_args} if spec.model == "amoebanet-d" else {"L": 1}
    return {
        "args": {**args, **spec.model_args},
        "parameters": parameters,
        "fullest": 10**9,
        "balance": [1] * spec.K,
        "stages": stages,
    }


def fit_record(fits: bool, largest: int, workspace: float = 1.0) -> Any:
    """Printed sizes that train or not, and a search that ended at so many parameters."""

    def made(spec: RunSpec, _round: int) -> Measured:
        is_printed = "D" in spec.model_args or (spec.model, "L" in spec.model_args) == (
            "transformer",
            True,
        )
        model = cut(spec, largest)
        peaks = [round(10**9 * workspace)] * spec.K
        tried = {
            "args": model["args"],
            "parameters": largest,
            "status": "done" if fits else "oom",
            "reason": "" if fits else "stage 1: CUDA out of memory",
            "peak_bytes": peaks if fits else None,
            "counted_bytes": [10**9] * spec.K,
            "allocator_bytes": [[10**9, peak, 2 * peak] for peak in peaks] if fits else None,
        }
        ends = (model, None) if fits or not is_printed else (None, model)
        fit = {"largest": ends[0], "next": ends[1], "counted": model, "tried": [tried]}
        common = {"balance": [1] * spec.K, "setup_s": 0.1, "unit": "x", "labels": {}}
        return Measured(round_record({"task": "fit", "fit": fit, "peak_bytes": peaks, **common}))

    return made


def columns_of(path: Path, made: Any, scale: Scale = "gpu") -> list[table1_gpu.Measured]:
    machine = CPU if scale == "gpu-dry" else H200
    fill_with(path, table1(scale), made, place=(machine, scale))
    return table1_gpu.measured_columns(load(path))


@pytest.mark.parametrize(
    ("fits", "largest", "verdict"),
    [
        (True, 320_000_000, "reproduced with what is inferred"),
        (True, 400_000_000, "consistent: trains, but larger ones do too"),
        (False, 320_000_000, "not reproduced: runs out of memory"),
    ],
)
def test_the_verdict_follows_from_what_trained(
    tmp_path: Path, fits: bool, largest: int, verdict: str
):
    columns = columns_of(tmp_path, fit_record(fits, largest))
    pipeline_1 = columns[1]
    assert (pipeline_1.size.name, pipeline_1.size.parameters) == ("Pipeline-1", 318e6)
    assert pipeline_1.verdict == verdict
    fate = shown(table1_gpu.largest(columns), ("printed size", "measured"))[1]
    assert fate == ("trains" if fits else "runs out: stage 1")


def test_the_model_that_settings_were_inferred_from_is_fitted(tmp_path: Path):
    columns = columns_of(tmp_path, fit_record(True, 790_000_000))
    pipeline_1 = columns[-2]
    assert (pipeline_1.size.name, pipeline_1.size.parameters) == ("Pipeline-1", 785.8e6)
    assert pipeline_1.verdict == "fitted: the largest that trains"


def test_a_rehearsal_earns_no_verdict_and_stands_beside_no_number(tmp_path: Path):
    columns = columns_of(tmp_path, fit_record(True, 320_000_000), "gpu-dry")
    assert columns
    assert {column.verdict for column in columns} == {"none: a rehearsal with small models"}
    assert set(shown(table1_gpu.largest(columns), ("largest", "quoted"))) == {"-"}


@pytest.mark.parametrize(
    ("workspace", "explanation"), [(1.04, ""), (1.2, "workspace"), (0.9, "not explained")]
)
def test_what_counting_does_not_see_is_named(tmp_path: Path, workspace: float, explanation: str):
    columns = columns_of(tmp_path, fit_record(True, 320_000_000, workspace))
    table = table1_gpu.memory(columns)
    assert set(shown(table, "explained by")) == {explanation}
    assert shown(table, "tensors")[0] == 1.0
