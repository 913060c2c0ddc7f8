#!/usr/bin/env bash
# torch 2.15.0: saving a checkpoint before the first step changes the training that follows. get_state_dict and
# get_optimizer_state_dict of torch.distributed.checkpoint fill an optimizer that has no state yet: they run its step with gradients
# and a learning rate of 0. The weights stay, but the optimizer has made a step. Adam's first real step is its second one then, and
# its correction for moments that begin at zero is that of a second step. Rprop has its smallest step size. Nothing warns.
# (optimizer.state_dict(), or a checkpoint after the first step, changes nothing.)
# Seen after a first step: Adam's and AdamW's is 0.744 times as large as without the checkpoint, Adamax's and RAdam's 0.526 times,
# NAdam's 0.989 times, SGD's with momentum and dampening 0.1 times and Rprop's 0.0001 times; Adagrad's and RMSprop's are the same.
# Fails if that changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q uv==0.13.8
"$work/venv/bin/uv" pip install -q --python "$work/venv/bin/python" torch==2.15.0 numpy==2.4.6
cd "$work"
"$work/venv/bin/python" -W error::UserWarning - <<'PY' 2>"$work/log" || { cat "$work/log"; exit 1; }
from functools import partial

import torch
from torch import nn, optim
from torch.distributed.checkpoint.state_dict import get_state_dict

LR = 0.01


def first_step(make, save) -> float:
    """How far the first step moves the weights, if `save` is called before it."""
    torch.manual_seed(0)
    model = nn.Linear(8, 8, dtype=torch.float64)
    optimizer = make(model.parameters(), lr=LR)
    x, y = torch.randn(2, 64, 8, dtype=torch.float64)
    initial = model.weight.detach().clone()
    save(model, optimizer)
    assert torch.equal(model.weight, initial) and optimizer.param_groups[0]["lr"] == LR
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    return (model.weight - initial).norm().item()


for name, make, ratio in (
    ("Adam", optim.Adam, 0.744),
    ("AdamW", optim.AdamW, 0.744),
    ("NAdam", optim.NAdam, 0.989),
    ("RAdam", optim.RAdam, 0.526),
    ("Adamax", optim.Adamax, 0.526),
    ("SGD with dampening", partial(optim.SGD, momentum=0.9, dampening=0.9), 0.1),
    ("Rprop", optim.Rprop, 0.0001),
    ("Adagrad", optim.Adagrad, 1),
    ("RMSprop", optim.RMSprop, 1),
):
    plain = first_step(make, lambda model, optimizer: None)
    own = first_step(make, lambda model, optimizer: optimizer.state_dict()) / plain
    found = first_step(make, get_state_dict) / plain
    print(f"{name}: a first step of {found:.4f} times that without a checkpoint")
    assert own == 1 and abs(found / ratio - 1) < 0.01
PY
