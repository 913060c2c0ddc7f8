#!/usr/bin/env bash
# torchgpipe 0.0.7: `deferred_batch_norm=True` is there so that running statistics are those of the mini-batch. They are not those
# that BatchNorm2d keeps, in two ways.
# 1. The variance is divided by n, and not by n - 1, where n counts the values of a channel in the mini-batch.
# 2. The layer counts micro-batches up to `chunks`. A mini-batch that torch.chunk cuts into fewer, such as the last one of an
#    epoch, is not committed: its statistics wait, and are mixed with those of the next mini-batch's first micro-batch.
# Seen with chunks=4 and mini-batches of 8, 5 and 8 images: after 8 a variance of 31/32 of BatchNorm2d's, after 5 nothing
# changed, after the next 8 one mini-batch tracked more, of 5 and 2 images, where BatchNorm2d has three.
# Fails if that changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q uv==0.13.8
"$work/venv/bin/uv" pip install -q --python "$work/venv/bin/python" torch==2.15.0 numpy
"$work/venv/bin/uv" pip install -q --python "$work/venv/bin/python" --no-deps torchgpipe==0.0.7
"$work/venv/bin/python" -W ignore - <<'PY'
import torch
from torch import nn
from torchgpipe import GPipe

torch.manual_seed(0)
plain = nn.BatchNorm2d(3, momentum=1.0)  # keeps the statistics of the last mini-batch alone
model = nn.Sequential(nn.BatchNorm2d(3, momentum=1.0), nn.Identity())
gpipe = GPipe(model, [2], devices=["cpu"], chunks=4, deferred_batch_norm=True)
(deferred,) = [m for m in gpipe.modules() if hasattr(m, "running_var")]
batches = [torch.randn(n, 3, 2, 2) for n in (8, 5, 8)]
tracked, variances = [], []
for images in batches:
    plain(images)
    gpipe(images).sum().backward()
    tracked.append((int(plain.num_batches_tracked), int(deferred.num_batches_tracked)))
    variances.append(deferred.running_var.clone())
    print("images", len(images), "tracked by BatchNorm2d, deferred:", tracked[-1])

first = batches[0].transpose(0, 1).flatten(1).var(1)
mixed = torch.cat([batches[1], batches[2][:2]]).transpose(0, 1).flatten(1)
torch.testing.assert_close(variances[0], first * 31 / 32)
assert torch.equal(variances[1], variances[0])
torch.testing.assert_close(variances[2], mixed.var(1, unbiased=False))
assert tracked == [(1, 1), (2, 1), (3, 2)], tracked
PY
