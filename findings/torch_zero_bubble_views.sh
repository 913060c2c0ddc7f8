#!/usr/bin/env bash
# torch 2.15.0: under pipelining's zero-bubble schedules a stage may not return a view. After the backward for the inputs torch
# detaches the stage's outputs in place, which it refuses for a view: "Failed to run stage backward input", caused by "Can't
# detach views in-place". A stage that ends in a reshape or a transpose, as many heads and patch embeddings do, is one, and so is
# a module with a full backward hook. The first stage may, since its backward is not split. 1F1B trains the same stages.
# Seen with three stages, of which one returned a view: trained if the first one did, refused if the second one did.
# Fails if that changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q uv==0.13.8
"$work/venv/bin/uv" pip install -q --python "$work/venv/bin/python" torch==2.15.0 numpy
"$work/venv/bin/python" -W ignore - <<'PY' 2>"$work/log" || { cat "$work/log"; exit 1; }
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def outcome(name, of_view):
    layers = [nn.Sequential(nn.Linear(4, 4)) for _ in range(3)]
    layers[of_view].append(nn.Unflatten(1, (4, 1)))
    layers[of_view + 1].insert(0, nn.Flatten())
    stages = [
        pipelining.PipelineStage(layer, i, 3, torch.device("cpu"))
        for i, layer in enumerate(layers)
    ]
    schedule = getattr(pipelining, name)(stages, 4, loss_fn=nn.MSELoss())
    try:
        schedule.step(torch.randn(8, 4), target=torch.zeros(8, 4))
    except RuntimeError as error:
        assert "Failed to run stage backward input" in str(error)
        assert "Can't detach views in-place" in str(error.__cause__)
        return "refused"
    return "trained"


seen = {}
for name in ("ScheduleInterleaved1F1B", "ScheduleInterleavedZeroBubble"):
    seen[name] = [outcome(name, of_view) for of_view in (0, 1)]
    print(torch.__version__, name, "a view from stage 0, 1:", seen[name])
assert list(seen.values()) == [["trained", "trained"], ["trained", "refused"]]
PY
