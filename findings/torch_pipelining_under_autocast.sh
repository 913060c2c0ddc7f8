#!/usr/bin/env bash
# torch 2.15.0: `schedule.step` of torch.distributed.pipelining runs forward and backward, so a torch.autocast region around it holds
# both. There is no other place for the region but inside each module. A layer that leaves the region for full precision, by
# autocast(enabled=False), then gets its outputs in float32 and its gradients from products in bfloat16. Nothing warns.
# Seen with two stages whose linear layers both leave the region: a plain step with backward() behind the region has the gradients
# of a step without autocast, to the last bit; under four schedules they are off by 0.4 %, as bfloat16 rounds.
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
x, y = torch.randn(8, 64), torch.randn(8, 64)
loss_fn = nn.MSELoss()


class Float32Linear(nn.Linear):
    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            return super().forward(x.float())


def make():
    torch.manual_seed(0)
    return nn.Sequential(Float32Linear(64, 64), nn.Tanh()), Float32Linear(64, 64)


def gradients(stages):
    return [p.grad for stage in stages for p in stage.parameters()]


def error(stages):
    pairs = zip(gradients(stages), expected, strict=True)
    return max(float((g - e).norm() / e.norm()) for g, e in pairs)


first, second = make()
loss_fn(second(first(x)), y).backward()
expected = gradients([first, second])

first, second = make()
with torch.autocast("cpu", dtype=torch.bfloat16):
    outputs = second(first(x))
    assert outputs.dtype == torch.float32
loss_fn(outputs, y).backward()
print("plain", error([first, second]))
assert error([first, second]) == 0
for name in ("Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble"):
    layers = make()
    stages = [pipelining.PipelineStage(layer, i, 2, torch.device("cpu")) for i, layer in enumerate(layers)]
    schedule = getattr(pipelining, f"Schedule{name}")(stages, 2, loss_fn=loss_fn)
    schedule.step(x, target=y)
    without = error(layers)
    for p in [p for layer in layers for p in layer.parameters()]:
        p.grad = None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        schedule.step(x, target=y)
    print(f"{name}: without a region {without:.1e}, in a region {error(layers):.1e}")
    assert without < 1e-6 and 1e-3 < error(layers) < 1e-2
PY
