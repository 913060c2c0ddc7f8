#!/usr/bin/env bash
# torch 2.15.0: under the zero-bubble schedules of torch.distributed.pipelining a hook on an activation changes its gradient twice.
# Tensor.register_hook inside a layer, as gradient reversal or scaling uses it, acts in the backward for the inputs and once more
# in the backward for the weights of the operator that made the activation. So the weights in front of a hook that doubles get a
# gradient twice too large, and those in front of a hook that reverses the sign are not reversed. What comes before them is right.
# Nothing warns.
# Seen in the second of three stages, of two linear layers with the hook between, as a multiple of a plain step's gradient.
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

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
x, y = torch.randn(8, 16), torch.randn(8, 16)


class Hooked(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.a, self.b, self.factor = nn.Linear(16, 16), nn.Linear(16, 16), factor

    def forward(self, x):
        hidden = self.a(x)
        hidden.register_hook(lambda gradient: self.factor * gradient)
        return self.b(hidden)


def multiples(name, factor):
    """Gradients over those of a plain step: of the stage before, in front of the hook, and behind it."""
    torch.manual_seed(0)
    layers = [nn.Linear(16, 16), Hooked(factor), nn.Linear(16, 16)]
    weights = [layers[0].weight, layers[1].a.weight, layers[1].b.weight]
    nn.MSELoss()(nn.Sequential(*layers)(x), y).backward()
    expected = [w.grad for w in weights]
    for layer in layers:
        layer.zero_grad()
    stages = [pipelining.PipelineStage(n, i, 3, torch.device("cpu")) for i, n in enumerate(layers)]
    getattr(pipelining, name)(stages, 4, loss_fn=nn.MSELoss()).step(x, target=y)
    return [
        round(float((w.grad * e).sum() / (e * e).sum()), 4)
        for w, e in zip(weights, expected, strict=True)
    ]


for factor in (2, -1):
    seen = {name: multiples(f"ScheduleInterleaved{name}", factor) for name in ("1F1B", "ZeroBubble")}
    print(f"hook times {factor}: gradients over plain ones", seen)
    assert seen == {"1F1B": [1, 1, 1], "ZeroBubble": [1, factor, 1]}
PY
