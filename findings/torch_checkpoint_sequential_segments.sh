#!/usr/bin/env bash
# torch 2.15.0: more segments can make checkpoint_sequential hold twice the activations. A segment has as many layers as dividing
# layers by segments gives, rounded down. The last one has all the others, and as the documentation says it is not recomputed.
# So 16 blocks in 8 segments are 8 pairs; in 9 segments they are 8 single blocks and one segment of 8, which keeps everything.
# Whoever raises the number of segments because memory is short gets less recomputation. Nothing warns.
# Seen with 16 blocks of two linear layers and two tanh: 33 tensors are held without recomputation, 12 with 8 segments, 25 with 9,
# and 18 with 16; 14, 8 and 15 of the blocks run twice. 9 segments of one or two blocks would hold 11.
# Fails if that changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q uv==0.13.8
"$work/venv/bin/uv" pip install -q --python "$work/venv/bin/python" torch==2.15.0 numpy==2.4.6
cd "$work"
"$work/venv/bin/python" -W error::UserWarning - <<'PY' 2>"$work/log" || { cat "$work/log"; exit 1; }
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

WIDTH, BLOCKS = 64, 16
runs = 0


def count(*_) -> None:
    global runs
    runs += 1


def block() -> nn.Module:
    layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh())
    layers.register_forward_pre_hook(count)
    return layers


model = nn.Sequential(*[block() for _ in range(BLOCKS)])
weights = {p.untyped_storage().data_ptr() for p in model.parameters()}


def held(forward: Callable[[Tensor], Tensor]) -> tuple[int, int]:
    """How many activations wait for the backward, and how many blocks it runs again."""
    kept, storages = [], set()

    def keep(t: Tensor) -> Tensor:
        kept.append(t)
        storages.add(t.untyped_storage().data_ptr())
        return t

    with saved_tensors_hooks(keep, lambda t: t):
        y = forward(torch.randn(8, WIDTH, requires_grad=True))
    before = runs
    y.sum().backward()
    return len(storages - weights), runs - before


def even(x: Tensor, segments: int) -> Tensor:
    """Segments whose lengths differ by at most one, all but the last recomputed."""
    cuts = [math.ceil(BLOCKS * n / segments) for n in range(segments + 1)]
    for start, end in zip(cuts[:-2], cuts[1:-1], strict=True):
        x = checkpoint(model[start:end], x, use_reentrant=False)
    return model[cuts[-2] :](x)


found = {"plain": held(model), "even 9": held(lambda x: even(x, 9))}
for segments in (8, 9, 16):
    found[f"{segments}"] = held(lambda x, n=segments: checkpoint_sequential(model, n, x, use_reentrant=False))
print("activations held, blocks run again:", found)
seen = {"plain": (33, 0), "even 9": (11, 15), "8": (12, 14), "9": (25, 8), "16": (18, 15)}
assert found == seen
PY
