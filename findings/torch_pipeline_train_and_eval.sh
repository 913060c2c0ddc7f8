#!/usr/bin/env bash
# torch 2.15.0: the stages that torch.distributed.pipelining.pipeline() cuts out of a model stay in the mode, training or evaluation,
# in which they were traced. eval() and train() are taken, and change `.training`, but nothing else, and nothing warns. (A program
# of torch.export, from which the stages come, refuses both.) So a validation between two epochs drops activations, normalizes by
# its own batch and moves the running statistics; and what was traced in evaluation is never trained with dropout.
# Seen with a dropout and a batch norm in two stages.
# Fails if that changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q uv==0.13.8
"$work/venv/bin/uv" pip install -q --python "$work/venv/bin/python" torch==2.15.0 numpy
"$work/venv/bin/python" -W ignore - <<'PY' 2>"$work/log" || { cat "$work/log"; exit 1; }
import torch
from torch import nn
from torch.distributed.pipelining import SplitPoint, pipeline

x = torch.randn(16, 8)


def seen(traced, then):
    """Whether the first stage drops, and whether the second one moves its running mean."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(), nn.BatchNorm1d(8)).train(traced)
    pipe = pipeline(model, (x,), split_spec={"2": SplitPoint.BEGINNING})
    first, second = [pipe.get_stage_module(i).train(then) for i in range(2)]
    assert first.training == second.training == then
    hidden = first(x)
    (mean,) = [buffer for name, buffer in second.named_buffers() if name.endswith("running_mean")]
    before = mean.clone()
    second(hidden)
    return bool((hidden == 0).any()), not torch.equal(mean, before)


for traced in (True, False):
    for then in (True, False):
        drops, moves = seen(traced, then)
        print(f"traced with training={traced}, then train({then}): drops {drops}, moves statistics {moves}")
        assert drops == moves == traced
PY
