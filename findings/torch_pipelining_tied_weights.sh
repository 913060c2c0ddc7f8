#!/usr/bin/env bash
# torch 2.15.0: a weight that two stages of one rank share gets a wrong gradient in torch.distributed.pipelining. V-shaped schedules
# put the first and the last stage on one rank, so that embedding and output layer can share their weight there. Behind its last
# backward each stage divides what is in .grad by M, and with it what the other stage has added before. Nothing warns.
# Seen with M=4 and two stages, each of which adds to the gradient in each micro-batch. Their parts are 1/4 of what they should be,
# but for the first stage's in the last micro-batch, behind which only one division comes. LoopedBFS runs all backwards of the
# first stage behind the last stage's division, so these are right. With an unshared weight all parts are right in all five
# schedules, and also with a shared one, scale_grads=False and a loss divided by M.
# Fails if that changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q uv==0.13.8
"$work/venv/bin/uv" pip install -q --python "$work/venv/bin/python" torch==2.15.0 numpy==2.4.6
"$work/venv/bin/python" - <<'PY' 2>"$work/log" || { cat "$work/log"; exit 1; }
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining

M, D = 4, 6
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
torch.manual_seed(0)
x, y = torch.randn(2 * M, D, dtype=torch.float64), torch.randn(2 * M, D, dtype=torch.float64)
start = torch.randn(D, D, dtype=torch.float64)


class Stage(nn.Module):
    def __init__(self, weight: nn.Parameter, *, last: bool) -> None:
        super().__init__()
        self.weight, self.last = weight, last

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(h, self.weight.t() if self.last else self.weight)


def stages(*, tied: bool) -> list[Stage]:
    first = nn.Parameter(start.clone())
    return [Stage(first, last=False), Stage(first if tied else nn.Parameter(start.clone()), last=True)]


# The gradient of each stage in each micro-batch.
first, last = stages(tied=False)
parts = [
    torch.autograd.grad(nn.functional.mse_loss(last(first(a)), b) / M, [first.weight, last.weight])
    for a, b in zip(x.chunk(M), y.chunk(M), strict=True)
]
columns = torch.stack([part.flatten() for stage in zip(*parts, strict=True) for part in stage], 1)


def weights(name: str, *, tied: bool, scale_grads: bool = True) -> list[float]:
    """How much of each part is in the gradient: M numbers of the first stage, and M of the last."""
    modules = stages(tied=tied)
    parts = [pipelining.PipelineStage(m, i, 2, torch.device("cpu")) for i, m in enumerate(modules)]
    loss = nn.MSELoss() if scale_grads else lambda out, target: nn.functional.mse_loss(out, target) / M
    schedule = getattr(pipelining, f"Schedule{name}")(parts, M, loss_fn=loss, scale_grads=scale_grads)
    schedule.step(x, target=y)
    total = sum(p.grad for p in {m.weight for m in modules})
    return [round(w, 6) for w in torch.linalg.lstsq(columns, total.flatten()[:, None]).solution.flatten().tolist()]


late = [1 / 4, 1 / 4, 1 / 4, 1]
for name in ("Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV", "LoopedBFS"):
    found = weights(name, tied=True)
    print(f"{name}: first stage {found[:M]}, last stage {found[M:]}")
    assert found == ([1] * M if name == "LoopedBFS" else late) + [1 / 4] * M
    assert weights(name, tied=False) == weights(name, tied=True, scale_grads=False) == [1] * 2 * M
PY
