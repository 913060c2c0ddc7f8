#!/usr/bin/env bash
# torchgpipe 0.0.7 and fairscale 0.4.13 with torch 2.15.0: a mode that is switched on around the model does not reach its layers.
# Both run layers in threads of their own, on CPUs too and with a single stage too, and torch keeps such modes per thread. They
# hand on the grad mode alone. So under torch.autocast the model computes in float32, FlopCounterMode counts 0, and hooks for
# saved tensors, as save_on_cpu sets them, see no activation of a layer. Nothing warns. Autocast opened inside a layer works.
# Seen in two linear layers: plain bfloat16, 1536 FLOPs, 3 tensors saved; pipelined with checkpoint="never" float32, 0, 0.
# Fails if that changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q uv==0.13.8
"$work/venv/bin/uv" pip install -q --python "$work/venv/bin/python" torch==2.15.0 numpy setuptools
"$work/venv/bin/uv" pip install -q --python "$work/venv/bin/python" --no-deps torchgpipe==0.0.7 fairscale==0.4.13
"$work/venv/bin/python" -W ignore - <<'PY' 2>"$work/log" || { cat "$work/log"; exit 1; }
import torch
from fairscale.nn import Pipe
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from torchgpipe import GPipe


def layers():
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))


def seen(model):
    """Type of the outputs under autocast, FLOPs counted, tensors that a hook saw saved."""
    x = torch.randn(6, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        dtype = model(x).dtype
    with FlopCounterMode(display=False) as counter:
        model(x)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        model(x)
    return dtype, counter.get_total_flops(), len(saved)


class Autocast(nn.Linear):
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward(x)


found = seen(layers())
print("plain", found)
assert found == (torch.bfloat16, 2 * 2 * 6 * 8 * 8, 3)
for kind in (GPipe, Pipe):
    for balance in ([2], [1, 1]):
        settings = dict(balance=balance, devices=["cpu"] * len(balance), chunks=2, checkpoint="never")
        found = seen(kind(layers(), **settings))
        print(kind.__module__, balance, found)
        assert found == (torch.float32, 0, 0)
        inside = kind(nn.Sequential(Autocast(8, 8), Autocast(8, 8)), **settings)
        assert inside(torch.randn(6, 8)).dtype == torch.bfloat16
PY
