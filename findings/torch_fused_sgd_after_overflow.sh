#!/usr/bin/env bash
# torch 2.15.0: SGD(fused=True) with momentum gets a momentum that nobody computed, if GradScaler skips its first step. The scaler
# leaves it to a fused optimizer to skip a step. SGD then allocates its momentum, and calls a kernel that does nothing. So the next
# step takes what was in memory for the momentum. It usually is the first step that is skipped, since the scaler begins with a
# scale of 65536 and finds a smaller one by overflows. Nothing warns. Fused Adam, AdamW and Adagrad begin with zeros, and without
# fused=True no step is called.
# Seen in float16 on a CPU, where the first five steps overflow: fused SGD has a momentum after the first one. It is NaN here, since
# deterministic algorithms fill new memory with it, and the weights are NaN after 20 steps. All others train.
# Fails if that changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q uv==0.13.8
"$work/venv/bin/uv" pip install -q --python "$work/venv/bin/python" torch==2.15.0 numpy==2.4.6
cd "$work"
"$work/venv/bin/python" -W error::UserWarning - <<'PY'
from functools import partial

import torch
from torch import nn, optim

torch.use_deterministic_algorithms(True)  # fill new memory with NaN


def train(make) -> tuple[int, bool, bool]:
    """How many steps were skipped, and whether the first one's state and the last weights are finite."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    x, y = torch.randn(4, 8), torch.full((4, 1), 10.0)
    optimizer, scaler = make(model.parameters()), torch.amp.GradScaler("cpu")
    weights = list(model.parameters())
    skipped = 0
    for step in range(20):
        before, scale = [weight.clone() for weight in weights], scaler.get_scale()
        with torch.autocast("cpu", torch.float16):
            outputs = model(x)
        optimizer.zero_grad()
        scaler.scale(nn.functional.mse_loss(outputs.float(), y)).backward()
        scaler.step(optimizer)
        scaler.update()
        skipped += scaler.get_scale() < scale
        if step == 0:
            assert skipped and all(map(torch.equal, weights, before))
            state = [value for values in optimizer.state.values() for value in values.values()]
            finite = all(value.isfinite().all() for value in state)
    return skipped, finite, all(weight.isfinite().all() for weight in weights)


momentum = partial(optim.SGD, lr=0.001, momentum=0.9)
for name, make in (
    ("SGD with momentum", momentum),
    ("SGD with momentum, fused", partial(momentum, fused=True)),
    ("SGD, fused", partial(optim.SGD, lr=0.001, fused=True)),
    ("Adam, fused", partial(optim.Adam, fused=True)),
    ("AdamW, fused", partial(optim.AdamW, fused=True)),
    ("Adagrad, fused", partial(optim.Adagrad, fused=True)),
):
    skipped, state, weights = train(make)
    print(f"{name}: {skipped} steps skipped; finite: state {state}, weights {weights}")
    assert (skipped, state, weights) == ((19, False, False) if "momentum, fused" in name else (5, True, True))
PY
