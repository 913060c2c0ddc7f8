#!/usr/bin/env bash
# timm 1.0.31: LAMB clips by the norm of all gradients, with the limit that its constructor got. `max_grad_norm` also is in
# each parameter group, but what is written there, or loaded with a state dict, changes nothing.
# Seen after gradients of 30 and 0.5: equal weights with 1 and None in the groups, others with None in the constructor.
# Fails if that changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q uv==0.13.8
"$work/venv/bin/uv" pip install -q --python "$work/venv/bin/python" torch==2.15.0 timm==1.0.31 numpy
"$work/venv/bin/python" - <<'PY'
import timm
import torch
from timm.optim import Lamb


def trained(in_groups=1.0, **given):
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = Lamb([weight], lr=0.1, weight_decay=0.0, **given)
    assert all("max_grad_norm" in group for group in optimizer.param_groups)
    if not given:
        for group in optimizer.param_groups:
            group["max_grad_norm"] = in_groups
    for gradient in (30.0, 0.5):
        weight.grad = torch.tensor([gradient])
        optimizer.step()
    return weight.item()


found = trained(), trained(in_groups=None), trained(max_grad_norm=None)
print(timm.__version__, "limit in groups 1, None; in the constructor None:", found)
assert found[0] == found[1] != found[2]
PY
