#!/usr/bin/env bash
# torch 2.15.0: under the zero-bubble schedules of torch.distributed.pipelining a stage behind frozen ones is not trained, without a
# warning. Fine-tuning with the first stages frozen is the usual case. Where none of a stage's inputs requires a gradient, there is
# no backward for the inputs, and the backward for the weights finds nothing to do: its parameters' .grad stays None, so that an
# optimizer skips them. (The model's first stage is trained, since its backward is not split.)
# Seen with four stages: with 0, 1, 2 or 3 of them frozen, the first trained one has no gradients under InterleavedZeroBubble, but
# where it is the model's first. Interleaved1F1B has those of a plain step for all.
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

STAGES, MICRO_BATCHES = 4, 4
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
x, y = torch.randn(8, 16), torch.randn(8, 16)


def trained(name, frozen):
    """The stages whose parameters have the gradients of a plain step."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(STAGES)]
    for layer in layers[:frozen]:
        layer.requires_grad_(False)
    nn.MSELoss()(nn.Sequential(*layers)(x), y).backward()
    expected = [layer[0].weight.grad for layer in layers]
    for layer in layers:
        layer.zero_grad()
    stages = [pipelining.PipelineStage(n, i, STAGES, torch.device("cpu")) for i, n in enumerate(layers)]
    getattr(pipelining, name)(stages, MICRO_BATCHES, loss_fn=nn.MSELoss()).step(x, target=y)
    found = []
    for i, (layer, gradient) in enumerate(zip(layers, expected, strict=True)):
        if layer[0].weight.grad is not None:
            torch.testing.assert_close(layer[0].weight.grad, gradient)
            found.append(i)
    return found


for frozen in range(STAGES):
    seen = {name: trained(f"ScheduleInterleaved{name}", frozen) for name in ("1F1B", "ZeroBubble")}
    print(f"{frozen} stages frozen, trained are", seen)
    behind = [i for i in range(frozen, STAGES) if frozen == 0 or i > frozen]
    assert seen == {"1F1B": list(range(frozen, STAGES)), "ZeroBubble": behind}
PY
