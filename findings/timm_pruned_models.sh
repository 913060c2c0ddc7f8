#!/usr/bin/env bash
# timm 1.0.31: `create_model` of a pruned model initialises the full model and then puts new modules in the place of its
# layers. So the model's own initialisation is lost: `bn3.weight`, which timm sets to zero, is one. The model is also left
# in evaluation mode, where every other one trains.
# Seen for ecaresnet50d_pruned beside ecaresnet50d: 1.0 and 0.0; evaluation and training. Fails if that changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q uv==0.13.8
"$work/venv/bin/uv" pip install -q --python "$work/venv/bin/python" torch==2.15.0 torchvision==0.29.2 timm==1.0.31
"$work/venv/bin/python" - <<'PY'
import timm
import torch

found = {}
for name in ("ecaresnet50d", "ecaresnet50d_pruned"):
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False)
    found[name] = float(model.layer1[0].bn3.weight.detach().abs().max()), model.training
print(timm.__version__, found)
assert found == {"ecaresnet50d": (0.0, True), "ecaresnet50d_pruned": (1.0, False)}
PY
