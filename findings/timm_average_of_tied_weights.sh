#!/usr/bin/env bash
# timm 1.0.31 with transformers 5.24.0: the moving averages of ModelEmaV2 and ModelEmaV3 move a tied weight twice in each update.
# They go through the state dict, which has the weight of a language model's embedding under the name of its output layer too.
# So a decay of d acts as d squared on it: 0.9999 as 0.9998, with half the memory that the other weights have. Nothing warns.
# ModelEmaV3 with exclude_buffers=True goes through the parameters instead and is right, as is torch's AveragedModel.
# Seen in a small GPT-2, averaged from 1 towards 0 with a decay of 0.9: after five updates 0.9 ** 10 for the tied weight, and
# 0.9 ** 5 for all others.
# Fails if that changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q uv==0.13.8
"$work/venv/bin/uv" pip install -q --python "$work/venv/bin/python" torch==2.15.0 numpy==2.4.6 timm==1.0.31 transformers==5.24.0
cd "$work"
"$work/venv/bin/python" -W ignore - <<'PY' 2>"$work/log" || { cat "$work/log"; exit 1; }
import torch
from timm.utils import ModelEmaV2, ModelEmaV3
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from transformers import GPT2Config, GPT2LMHeadModel

DECAY, UPDATES = 0.9, 5
config = GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=11, n_positions=16, bos_token_id=0, eos_token_id=0)


def fill(model: nn.Module, value: float) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)


def averaged(average) -> dict[str, float]:
    """Each weight of the average after some updates of a model of zeros, where it began with ones."""
    model = GPT2LMHeadModel(config)
    assert model.lm_head.weight is model.transformer.wte.weight
    fill(model, 1)
    ema = average(model)
    if isinstance(ema, AveragedModel):
        ema.update_parameters(model)  # the first one copies
    fill(model, 0)
    for _ in range(UPDATES):
        (ema.update_parameters if isinstance(ema, AveragedModel) else ema.update)(model)
    return {name: round(p.mean().item(), 5) for name, p in ema.module.named_parameters()}


once, twice = (round(DECAY**n, 5) for n in (UPDATES, 2 * UPDATES))
for name, average, tied in (
    ("ModelEmaV2", lambda m: ModelEmaV2(m, decay=DECAY), twice),
    ("ModelEmaV3", lambda m: ModelEmaV3(m, decay=DECAY), twice),
    ("ModelEmaV3, loop", lambda m: ModelEmaV3(m, decay=DECAY, foreach=False), twice),
    ("ModelEmaV3, parameters", lambda m: ModelEmaV3(m, decay=DECAY, exclude_buffers=True), once),
    ("AveragedModel", lambda m: AveragedModel(m, multi_avg_fn=get_ema_multi_avg_fn(DECAY)), once),
):
    found = averaged(average)
    embedding = found.pop("transformer.wte.weight")
    print(f"{name}: tied weight {embedding}, all others {set(found.values())}")
    assert embedding == tied and set(found.values()) == {once}
PY
