"""The same training on GPUs: alone, several stages on one GPU through host memory, one GPU for each stage."""

import itertools

import pytest
import torch
from scenarios import on_gpus, train

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


@pytest.mark.gpu
@pytest.mark.parametrize("stages", [1, 2])
def test_one_gpu_gives_what_the_cpu_gives(stages):
    compare(stages)


@pytest.mark.multigpu
def test_a_gpu_for_each_stage_over_nccl():
    compare(min(torch.cuda.device_count(), 3))
