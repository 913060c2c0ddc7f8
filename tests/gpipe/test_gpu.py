"""The same training on GPUs: one stage, several on one GPU, one GPU for each stage."""

import itertools

import pytest
import torch
from scenarios import CASES, on_gpus, train
from transports import on_busy_gpus

from repro.gpipe import launch


def compare(stages):
    expected = launch(train, "nested", 1, 4, "always", "gpipe", stages=1)[0]
    ran = launch(on_gpus, stages, stages=stages)
    assert all(r["device"] == "cuda" for r in ran)
    weights = {name: value for r in ran for name, value in r["weights"].items()}
    assert weights.keys() == expected["weights"].keys()
    for name, value in expected["weights"].items():
        torch.testing.assert_close(weights[name], value, rtol=1e-4, atol=1e-6)
    assert ran[0]["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    assert ran[0]["peaks"] == ran[-1]["peaks"]
    assert all(peak > 0 for peak in ran[0]["peaks"])
    timeline = ran[0]["timeline"]
    for j in range(stages):
        spans = [s for s in timeline.on(j) if s.kind in "FRB"]
        assert len(spans) == 12
        assert all(a.end <= b.start + 1e-4 for a, b in itertools.pairwise(spans))


def compare_busy(stages):
    """Nothing is read before it is computed, nor overwritten while it is copied."""
    alone = launch(on_busy_gpus, 1, stages=1)[0]
    ran = launch(on_busy_gpus, stages, stages=stages)
    for case in CASES:
        assert ran[0]["losses"][case] == pytest.approx(alone["losses"][case], rel=1e-4), case
    first, second = (ran[rank]["odd"] for rank in range(2))
    assert len(second["seen"]) == len(alone["odd"]["seen"])
    for n, (ours, theirs) in enumerate(zip(second["seen"], alone["odd"]["seen"], strict=True)):
        for name, (stride, values) in theirs.items():
            torch.testing.assert_close(ours[name][1], values, rtol=1e-4, atol=1e-5)
            assert n < 4 or ours[name][0] == stride, name
    for name, gradient in first["gradients"].items():
        torch.testing.assert_close(gradient, alone["odd"]["gradients"][name], rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("stages", [1, 2])
def test_one_gpu_gives_what_the_cpu_gives(stages):
    compare(stages)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() > 1, reason="stages get a GPU each")
def test_busy_stages_on_one_gpu():
    compare_busy(2)


@pytest.mark.multigpu
def test_busy_stages_over_nccl():
    compare_busy(min(torch.cuda.device_count(), 3))


@pytest.mark.multigpu
def test_a_gpu_for_each_stage_over_nccl():
    compare(min(torch.cuda.device_count(), 3))
