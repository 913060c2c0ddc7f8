#!/usr/bin/env bash
# torch 2.15.0: with DDP's PowerSGD hook, one overflow that GradScaler skips ends training. The hook adds to each gradient what its
# compression has left out of the last one. What it has left out of an overflow is NaN, so all later gradients are NaN too. The
# scaler skips their steps, and halves its scale each time. Nothing raises or warns, and the loss stays finite. An overflow is no
# accident: the scaler doubles its scale until one comes. For PowerSGD the documentation advises torch's own mixed precision, which
# is this scaler, where Apex conflicts. With use_error_feedback=False training goes on.
# Seen in float16 on a CPU, with a scale that doubles after 5 steps: the first overflow comes in step 30 of 60, and none of the steps
# behind it trains. Without error feedback, or without the hook, 55 of the 60 steps train.
# Fails if that changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q uv==0.13.8
"$work/venv/bin/uv" pip install -q --python "$work/venv/bin/python" torch==2.15.0 numpy==2.4.6
cd "$work"
"$work/venv/bin/python" -W error::UserWarning - <<'PY' 2>"$work/log" || { cat "$work/log"; exit 1; }
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

STEPS = 60
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def train(options: dict[str, bool] | None) -> tuple[list[int], list[int], float]:
    """The steps that changed the weights, those that overflowed, and the last loss."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)))
    if options is not None:
        state = PowerSGDState(None, start_powerSGD_iter=2, **options)
        model.register_comm_hook(state, powerSGD_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", growth_interval=5)
    x = torch.randn(32, 64)
    trained, overflowed = [], []
    for step in range(STEPS):
        before, scale = model.module[0].weight.clone(), scaler.get_scale()
        with torch.autocast("cpu", torch.float16):
            outputs = model(x)
        loss = nn.functional.mse_loss(outputs.float(), x.roll(1, 1))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if not torch.equal(model.module[0].weight, before):
            trained.append(step)
        if scaler.get_scale() < scale:
            overflowed.append(step)
    return trained, overflowed, loss.item()


for name, options, trains in (
    ("no hook", None, 55),
    ("PowerSGD", {}, 30),
    ("PowerSGD without error feedback", {"use_error_feedback": False}, 55),
):
    trained, overflowed, loss = train(options)
    print(f"{name}: {len(trained)} of {STEPS} steps train, overflows in {overflowed}, last loss {loss:.2f}")
    assert len(trained) == trains and len(overflowed) == STEPS - trains and loss < 1.1
    if trains == 30:
        assert trained == list(range(30))
PY
