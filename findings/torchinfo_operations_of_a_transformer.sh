#!/usr/bin/env bash
# torchinfo 1.8.0 with torch 2.15.0: `total_mult_adds` of a Transformer does not grow with the length of its sequences. A linear
# layer counts once for each example, however many tokens that has, and attention not at all: its weights are not those of a
# submodule that runs. Convolutions count every position and an LSTM every time step. So a Transformer looks hundreds of times
# cheaper than it is, and than an LSTM. Nothing warns. (A transposed convolution errs the other way: its weights count for each
# output, and not for each input, so with a stride of 2 four times as often.)
# Seen beside half of what FlopCounterMode counts: an encoder layer of width 64 has 33,344 for 16 tokens and for 256, which are
# 4.1 % and 0.16 % of it. An LSTM grows 16 times. A transposed convolution with a kernel of 3 has 4.25 times as many as it runs.
# Fails if that changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q uv==0.13.8
"$work/venv/bin/uv" pip install -q --python "$work/venv/bin/python" torch==2.15.0 numpy==2.4.6 torchinfo==1.8.0
cd "$work"
"$work/venv/bin/python" -W error::UserWarning - <<'PY' 2>"$work/log" || { cat "$work/log"; exit 1; }
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from torchinfo import summary


def counts(model: nn.Module, *shape: int) -> tuple[int, float]:
    """Multiply-adds of one forward in training, of torchinfo and of FlopCounterMode."""
    x = torch.randn(shape)
    with FlopCounterMode(display=False) as counter:
        model.train()(x)
    return summary(model, input_data=x, mode="train", verbose=0).total_mult_adds, counter.get_total_flops() / 2


encoder = nn.TransformerEncoderLayer(64, nhead=4, dim_feedforward=256, dropout=0.0, batch_first=True)
found = {tokens: counts(encoder, 1, tokens, 64) for tokens in (16, 256)}
linear = {shape: counts(nn.Linear(64, 64, bias=False), *shape) for shape in ((1, 16, 64), (16, 64))}
lstm = [counts(nn.LSTM(64, 64, batch_first=True), 1, steps, 64)[0] for steps in (16, 256)]
transposed = counts(nn.ConvTranspose2d(8, 8, 3, stride=2, bias=False), 1, 8, 16, 16)
print(f"encoder layer {found}, linear layer {linear}, LSTM {lstm}, transposed convolution {transposed}")
assert found[16][0] == found[256][0] == 33_344
assert abs(found[16][0] / found[16][1] - 0.041) < 5e-4 and abs(found[256][0] / found[256][1] - 0.0016) < 5e-5
assert linear == {(1, 16, 64): (64 * 64, 16 * 64 * 64), (16, 64): (16 * 64 * 64, 16 * 64 * 64)}
assert lstm[1] == 16 * lstm[0]
assert abs(transposed[0] / transposed[1] - 4.25) < 0.01
PY
