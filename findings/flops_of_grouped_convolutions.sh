#!/usr/bin/env bash
# torch 2.15.0: FlopCounterMode counts the gradient of a grouped convolution's weights as if it were dense. With G groups
# the backward has 1 + G times the operations of the forward; 2 times would be right. A depthwise convolution of 8
# channels gets 9 times, so a separable network looks far more expensive to train than it is. The forward is right.
# Seen: 2.0 for 1 group, 3.0 for 2, 9.0 for 8. Fails if that changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q uv==0.13.8
"$work/venv/bin/uv" pip install -q --python "$work/venv/bin/python" torch==2.15.0 numpy==2.4.6
cd "$work"
"$work/venv/bin/python" - <<'PY'
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

found = {}
for groups in (1, 2, 8):
    convolution = nn.Conv2d(8, 8, 3, padding=1, groups=groups)
    with FlopCounterMode(display=False) as forward:
        output = convolution(torch.randn(2, 8, 10, 10, requires_grad=True))
    with FlopCounterMode(display=False) as backward:
        output.sum().backward()
    assert forward.get_total_flops() == 2 * output.numel() * convolution.weight[0].numel()
    found[groups] = backward.get_total_flops() / forward.get_total_flops()
print(torch.__version__, "backward over forward, by groups:", found)
assert found == {1: 2.0, 2: 3.0, 8: 9.0}
PY
