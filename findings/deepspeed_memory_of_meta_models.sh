#!/usr/bin/env bash
# DeepSpeed 0.19.8 with torch 2.15.0: for a model on the meta device, where models too large for a machine are made, the
# estimates of memory under ZeRO-2 and ZeRO-3 count the last parameter alone. estimate_zero2_model_states_mem_needs_all_live and
# the same for ZeRO-3 count a tied parameter once. They tell parameters apart by address, which is 0 for all on meta. The last
# parameter of most language models is their output layer, so the number of parameters that is printed does not look absurd.
# Nothing warns.
# Seen for a model of 6.7 billion parameters on 8 GPUs: 131 million, and 0.52 GB for each GPU under ZeRO-2 and 0.76 GB under
# ZeRO-3, where the estimates by number give 26.54 and 14.54 GB. The same model of width 64 on a CPU is counted right.
# Fails if that changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q uv==0.13.8
"$work/venv/bin/uv" pip install -q --python "$work/venv/bin/python" torch==2.15.0 numpy==2.4.6 deepspeed==0.19.8
cd "$work"
cat >estimate.py <<'PY'
import os
import re
from contextlib import redirect_stdout
from io import StringIO

os.environ["DS_ACCELERATOR"] = "cpu"
import torch
from deepspeed.runtime.zero import stage3, stage_1_and_2
from torch import nn

ZERO2_LIVE = stage_1_and_2.estimate_zero2_model_states_mem_needs_all_live
ZERO2_COLD = stage_1_and_2.estimate_zero2_model_states_mem_needs_all_cold
ZERO3_LIVE = stage3.estimate_zero3_model_states_mem_needs_all_live
ZERO3_COLD = stage3.estimate_zero3_model_states_mem_needs_all_cold


def language_model(width: int) -> nn.Sequential:
    layers = [nn.TransformerEncoderLayer(width, 32, 4 * width) for _ in range(32)]
    return nn.Sequential(nn.Embedding(32000, width), *layers, nn.Linear(width, 32000, bias=False))


def gigabytes(estimate, *arguments) -> float:
    """What a GPU needs without offloading."""
    with redirect_stdout(StringIO()) as text:
        estimate(*arguments, num_gpus_per_node=8)
    last = text.getvalue().strip().splitlines()[-1]
    return float(re.findall(r"[\d.]+", last)[1])


for device, width in (("cpu", 64), ("meta", 4096)):
    with torch.device(device):
        model = language_model(width)
    right = sum(p.numel() for p in model.parameters())
    counted = stage_1_and_2.model_to_params(model)
    largest = model[0].weight.numel()
    assert stage3.model_to_params(model) == (counted, largest)
    zero2 = gigabytes(ZERO2_LIVE, model), gigabytes(ZERO2_COLD, right)
    zero3 = gigabytes(ZERO3_LIVE, model), gigabytes(ZERO3_COLD, right, largest)
    print("RESULT", f"{device}: {counted:,} of {right:,} parameters; GB for a GPU and right: ZeRO-2 {zero2}, ZeRO-3 {zero3}")
    if device == "cpu":
        assert counted == right and zero2[0] == zero2[1] and zero3[0] == zero3[1]
    else:
        assert counted == model[-1].weight.numel() == 131_072_000
        assert zero2 == (0.52, 26.54) and zero3 == (0.76, 14.54)
PY
"$work/venv/bin/python" -W ignore estimate.py >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
sed -n 's/^RESULT //p' "$work/log"
