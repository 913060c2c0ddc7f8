#!/usr/bin/env bash
# torch 2.15.0: FlopCounterMode finds no operation in an encoder layer of a Transformer in evaluation without gradients,
# although the same layer has them in training: evaluation takes one fused operator, for which no formula is registered.
# An LSTM has none in either mode. A count of 0 comes without a warning.
# Seen: 16,960 and 0 for nn.TransformerEncoderLayer, 0 for nn.LSTM. Fails if that changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q uv==0.13.8
"$work/venv/bin/uv" pip install -q --python "$work/venv/bin/python" torch==2.15.0 numpy==2.4.6
cd "$work"
"$work/venv/bin/python" - <<'PY'
import warnings

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

warnings.simplefilter("error", RuntimeWarning)


def flops(layer: nn.Module, *, training: bool) -> int:
    layer.train(training)
    with torch.set_grad_enabled(training), FlopCounterMode(display=False) as counter:
        layer(torch.randn(2, 5, 8))
    return counter.get_total_flops()


encoder = nn.TransformerEncoderLayer(8, nhead=2, dim_feedforward=32, batch_first=True)
found = flops(encoder, training=True), flops(encoder, training=False)
lstm = flops(nn.LSTM(8, 8, batch_first=True), training=True)
print(torch.__version__, "encoder in training and in evaluation:", found, "LSTM:", lstm)
assert found == (16960, 0) and lstm == 0
PY
