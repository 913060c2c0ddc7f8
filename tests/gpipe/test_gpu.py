"""The same training on GPUs: one stage, several on one GPU, one GPU for each stage."""

import itertools

import pytest
import torch
from compare import as_plain, launch_all, plain, same_bits
from torch import nn

from repro.gpipe import Pipeline, PipelineConfig, launch
from repro.gpipe.schedule.kinds import RECOMPUTE_MODES

GPUS = min(torch.cuda.device_count(), 3)
WAYS = list(itertools.product(("gpipe", "gpipe-late", "1f1b"), RECOMPUTE_MODES))


class Slow(nn.Module):
    """Keeps a GPU busy after the call has returned: a copy that does not wait has wrong numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2048, 2048)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            x = self.linear(x).tanh() + x
        return x


def on_busy_gpus(stages: int) -> dict:
    """Losses of all schedules and recompute modes with slow layers."""
    losses = {}
    x = torch.randn(256, 2048, generator=torch.Generator().manual_seed(1))
    for schedule, recompute in WAYS:
        pipe = Pipeline([Slow] * 4, stages, 4, schedule=schedule, recompute=recompute, seed=2)
        optimizer = torch.optim.SGD(pipe.parameters(), lr=0.01)
        data = x, x, nn.functional.mse_loss, optimizer
        losses[schedule, recompute] = [pipe.train_step(*data).loss for _ in range(3)]
        pipe.close()
    return losses


@pytest.mark.parametrize(
    "stages",
    [
        pytest.param(1, marks=pytest.mark.gpu),
        pytest.param(2, marks=pytest.mark.gpu),
        pytest.param(GPUS, marks=pytest.mark.multigpu),  # over NCCL
    ],
)
def test_gpus_give_what_the_cpu_gives(stages):
    configs = [
        PipelineConfig(stages, 4, recompute=recompute, schedule=schedule, balance="uniform")
        for schedule, recompute in WAYS
    ]
    for case, found in launch_all([("nested", config) for config in configs], None).items():
        as_plain(found, plain(*case), atol=1e-5)
        assert found.timeline is not None
        for j in range(stages):
            spans = [s for s in found.timeline.on(j) if s.kind in "FRB"]
            assert all(a.end <= b.start + 1e-4 for a, b in itertools.pairwise(spans))


@pytest.mark.gpu
def test_busy_stages_on_one_gpu_or_over_nccl():
    """Nothing is read before it is computed, nor overwritten while it is copied."""
    stages = max(GPUS, 2)
    (alone,) = launch(on_busy_gpus, 1, stages=1)
    ran, *_ = launch(on_busy_gpus, stages, stages=stages)
    for case in WAYS:
        assert ran[case] == pytest.approx(alone[case], rel=1e-4), case


@pytest.mark.gpu
def test_the_same_bits_for_every_k_on_one_gpu(monkeypatch):
    """Messages go through host memory; kernels are those that give the same bits every time."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    configs = [
        PipelineConfig(K, 4, recompute=recompute, balance="uniform", transport="gloo")
        for K, recompute in ((1, "never"), (2, "always"), (4, "except_last"))
    ]
    one, *others = launch_all([("noisy", config) for config in configs], "cuda").values()
    for other in others:
        same_bits(other, one)
