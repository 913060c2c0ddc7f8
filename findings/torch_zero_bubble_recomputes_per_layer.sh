#!/usr/bin/env bash
# torch 2.15.0: with recomputation, the zero-bubble schedules of torch.distributed.pipelining run a checkpointed block of n linear
# layers n + 2 times for each micro-batch, where 1F1B runs it twice: once forward, once for the gradient of the inputs, and once
# more for the weights of each layer, whose gradients are a call of autograd each. torch.utils.checkpoint runs the whole block
# again in every one of these. So the work of a block grows with the square of its depth. Results are right, and nothing warns.
# (With use_reentrant=True these schedules refuse: "incompatible with .grad()".)
# Seen with blocks of 1 to 4 linear layers in three stages: 2 runs under interleaved 1F1B; 3, 4, 5 and 6 under interleaved zero
# bubble, but for the first stage, whose backward is not split.
# Fails if that changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q uv==0.13.8
"$work/venv/bin/uv" pip install -q --python "$work/venv/bin/python" torch==2.15.0 numpy
"$work/venv/bin/python" -W ignore - <<'PY' 2>"$work/log" || { cat "$work/log"; exit 1; }
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.utils.checkpoint import checkpoint

STAGES, MICRO_BATCHES = 3, 4
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
x, y = torch.randn(8, 16), torch.randn(8, 16)


class Block(nn.Sequential):
    runs = 0

    def inner(self, x):
        self.runs += 1
        return super().forward(x)

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False)


def runs(name, depth):
    """How often each stage's block ran for a micro-batch in a second step, once shapes are known."""
    torch.manual_seed(0)
    pairs = [[nn.Linear(16, 16), nn.Tanh()] for _ in range(STAGES * depth)]
    blocks = [Block(*sum(pairs[i * depth : (i + 1) * depth], [])) for i in range(STAGES)]
    nn.MSELoss()(nn.Sequential(*blocks)(x), y).backward()
    parameters = [p for block in blocks for p in block.parameters()]
    expected = [p.grad for p in parameters]
    stages = [pipelining.PipelineStage(n, i, STAGES, torch.device("cpu")) for i, n in enumerate(blocks)]
    schedule = getattr(pipelining, name)(stages, MICRO_BATCHES, loss_fn=nn.MSELoss())
    for _ in range(2):
        for parameter in parameters:
            parameter.grad = None
        for block in blocks:
            block.runs = 0
        schedule.step(x, target=y)
    for parameter, gradient in zip(parameters, expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
    return [block.runs / MICRO_BATCHES for block in blocks]


for depth in (1, 2, 3, 4):
    seen = {name: runs(f"ScheduleInterleaved{name}", depth) for name in ("1F1B", "ZeroBubble")}
    print(depth, "linear layers in a block:", seen)
    assert seen == {"1F1B": [2, 2, 2], "ZeroBubble": [2, depth + 2, depth + 2]}
PY
