#!/usr/bin/env bash
# timm 1.0.31 with torch 2.15.0: a model after set_grad_checkpointing() moves the running statistics of its batch norms twice in each
# training step, once forward and once when the block is recomputed, so a momentum of 0.1 acts as 0.19. Batch norms outside of
# the recomputed blocks move once, so one model has two momenta. Weights train the same; evaluation differs. Nothing warns.
# Seen in one step of resnet18 (19 of 20 batch norms twice) and efficientnet_b0 (47 of 49): running means that moved twice
# are 1.9 times those without recomputation, the others are equal, and so are all gradients.
# Fails if that changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q uv==0.13.8
"$work/venv/bin/uv" pip install -q --python "$work/venv/bin/python" torch==2.15.0 torchvision==0.29.2 timm==1.0.31 numpy
"$work/venv/bin/python" -W ignore - <<'PY' 2>"$work/log" || { cat "$work/log"; exit 1; }
import timm
import torch

x = torch.randn(4, 3, 64, 64)


def step(name, recomputes):
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=4)
    model.set_grad_checkpointing(recomputes)
    model.train()(x).square().sum().backward()
    return dict(model.named_buffers()), [p.grad for p in model.parameters()]


for name, counts in (("resnet18", {1: 1, 2: 19}), ("efficientnet_b0", {1: 2, 2: 47})):
    plain, gradients = step(name, False)
    recomputed, others = step(name, True)
    seen = {}
    for key, tracked in recomputed.items():
        if key.endswith("num_batches_tracked"):
            times = int(tracked)
            seen[times] = seen.get(times, 0) + 1
            assert plain[key] == 1
            mean = key.replace("num_batches_tracked", "running_mean")
            torch.testing.assert_close(recomputed[mean], plain[mean] * (1.9 if times == 2 else 1))
    print(f"{name}: batch norms by updates of their statistics in one step: {dict(sorted(seen.items()))}")
    assert seen == counts
    assert all(map(torch.equal, gradients, others))
PY
