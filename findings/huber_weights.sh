#!/usr/bin/env bash
# torch 2.15.0: the mean of a weighted loss divides by the sum of the weights in `l1_loss` and `mse_loss`, and by the
# number of elements in `huber_loss`. So the same weights scale one loss and not the others.
# Seen for weights 1, 2, 3, 4: 10, 10 and 4. Fails if that changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q uv==0.13.8
"$work/venv/bin/uv" pip install -q --python "$work/venv/bin/python" torch==2.15.0 numpy
"$work/venv/bin/python" - <<'PY'
import torch
from torch.nn import functional

x, zeros, weight = torch.arange(1.0, 5.0), torch.zeros(4), torch.arange(1.0, 5.0)
found = {}
for name in ("l1_loss", "mse_loss", "huber_loss"):
    loss = getattr(functional, name)
    mean = loss(x, zeros, weight=weight)
    found[name] = float(loss(x, zeros, weight=weight, reduction="sum") / mean)
print(torch.__version__, "a mean divides by", found)
assert found == {"l1_loss": 10.0, "mse_loss": 10.0, "huber_loss": 4.0}
PY
