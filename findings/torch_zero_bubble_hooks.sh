#!/usr/bin/env bash
# torch 2.15.0: pipelining's zero-bubble schedules add the gradient of a weight without the node that accumulates it.
# Hooks of register_post_accumulate_grad_hook, with which an optimizer can step inside the backward, then do not run, and
# nothing is raised: of three stages only the first one, whose backward is not split, calls them. And the backward of a
# custom autograd.Function runs twice for each micro-batch, once for its input and once for its weight.
# Seen with five parameters and four micro-batches: 20 calls of hooks and 4 backwards under Interleaved1F1B, 8 calls and 8
# backwards under InterleavedZeroBubble, with equal gradients. (torch runs one more, when it infers shapes.)
# Fails if that changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q uv==0.13.8
"$work/venv/bin/uv" pip install -q --python "$work/venv/bin/python" torch==2.15.0 numpy
"$work/venv/bin/python" -W ignore - <<'PY'
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining

calls = {"hook": 0, "backward": 0}


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, gradient):
        calls["backward"] += 1
        x, weight = ctx.saved_tensors
        return gradient * weight, (gradient * x).sum(0)


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return Product.apply(x, self.weight)


def count(parameter):
    calls["hook"] += 1


dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
seen = {}
for name in ("ScheduleInterleaved1F1B", "ScheduleInterleavedZeroBubble"):
    torch.manual_seed(0)
    layers = [nn.Linear(4, 4), Scale(), nn.Linear(4, 4)]
    parameters = [p for layer in layers for p in layer.parameters()]
    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(count)
    stages = [
        pipelining.PipelineStage(layer, i, 3, torch.device("cpu"))
        for i, layer in enumerate(layers)
    ]
    schedule = getattr(pipelining, name)(stages, 4, loss_fn=nn.MSELoss(reduction="sum"))
    calls.update(hook=0, backward=0)
    schedule.step(torch.randn(8, 4), target=torch.zeros(8, 4))
    seen[name] = calls["hook"], calls["backward"] - 1, [p.grad for p in parameters]
    print(torch.__version__, name, "hooks", seen[name][0], "backwards", seen[name][1])
plain, split = seen.values()
assert all(map(torch.equal, plain[2], split[2]))
assert plain[:2] == (20, 4) and split[:2] == (8, 8)
PY
