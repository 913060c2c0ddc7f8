#!/usr/bin/env bash
# torch 2.15.0: what torch.utils.checkpoint with use_reentrant=False recomputes depends on where blocks are cut. It stops as soon as
# it has the last tensor that the block's backward needs. A linear layer's output is none, unless something behind it in the block
# needs it. So a block that ends in a linear layer does not run that layer again. A post-norm layer of a Transformer, which ends in
# a norm, costs a whole forward more. A pre-norm layer with the same operations costs two thirds of one. So recomputation is not
# one forward more, and two models of equal cost differ. With use_reentrant=True all of each block runs again.
# Seen as the share of the forward's operations that is recomputed: 1 for linear + ReLU, 0 for ReLU + linear, 0.5 for a pre-norm
# feed-forward block, 0.68 for a pre-norm encoder layer and 1 for a post-norm one; gradients are those without checkpoints.
# Fails if that changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q uv==0.13.8
"$work/venv/bin/uv" pip install -q --python "$work/venv/bin/python" torch==2.15.0 numpy==2.4.6
cd "$work"
"$work/venv/bin/python" -W error::UserWarning - <<'PY' 2>"$work/log" || { cat "$work/log"; exit 1; }
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

WIDTH = 64
torch.manual_seed(0)


def linear(inputs: int = WIDTH, outputs: int = WIDTH) -> nn.Linear:
    return nn.Linear(inputs, outputs)


def encoder_layer(*, norm_first: bool) -> nn.Module:
    return nn.TransformerEncoderLayer(
        WIDTH, nhead=4, dim_feedforward=4 * WIDTH, dropout=0.0, batch_first=True, norm_first=norm_first
    )


def step(block: nn.Module, x: Tensor, **options) -> tuple[int, list[Tensor]]:
    """The operations of forward, recomputation and backward, and the gradients."""
    block.zero_grad()
    with FlopCounterMode(display=False) as counter:
        outputs = checkpoint(block, x, **options) if options else block(x)
        (outputs - x.detach().sin()).square().sum().backward()
    return counter.get_total_flops(), [p.grad.clone() for p in block.parameters()]


for name, block, share in (
    ("linear + ReLU", nn.Sequential(linear(), nn.ReLU()), 1.0),
    ("ReLU + linear", nn.Sequential(nn.ReLU(), linear()), 0.0),
    ("pre-norm feed-forward", nn.Sequential(nn.LayerNorm(WIDTH), linear(WIDTH, 256), nn.GELU(), linear(256)), 0.5),
    ("pre-norm encoder layer", encoder_layer(norm_first=True), 0.68),
    ("post-norm encoder layer", encoder_layer(norm_first=False), 1.0),
):
    x = torch.randn(2, 16, WIDTH, requires_grad=True)
    with FlopCounterMode(display=False) as forward:
        block(x)
    plain, gradients = step(block, x)
    shares = []
    for reentrant in (True, False):
        operations, recomputed = step(block, x, use_reentrant=reentrant)
        assert all(map(torch.allclose, gradients, recomputed))
        shares.append((operations - plain) / forward.get_total_flops())
    print(f"{name}: recomputed {shares[1]:.2f} of the forward; reentrant {shares[0]:.2f}")
    assert shares[0] == 1 and abs(shares[1] - share) < 0.01
PY
