#!/usr/bin/env bash
# torch 2.15.0: under the zero-bubble schedules of torch.distributed.pipelining, layers that fully_shard (FSDP2) shards one by one are
# not trained. By default a layer's weights are sharded again behind its forward pass. The backward for the inputs looks for the
# weights that the stage has at that moment, and these are not the ones that the layer computed with. So it finds none, and the
# backward for the weights has nothing to do: .grad stays None, and an optimizer skips them. Nothing warns. Weights that belong to
# the stage itself are gathered for the whole step and are trained, so the loss falls. So is the first stage, whose backward is not
# split. With reshard_after_forward=False all weights are trained.
# Seen in stages of two layers, one sharded alone and one with its stage: the former has no gradient behind the first stage under
# interleaved and V-shaped zero bubble. All others have a plain step's, as all have under interleaved 1F1B and LoopedBFS.
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
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

MICRO_BATCHES = 4
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))
x, y = torch.randn(8, 16), torch.randn(8, 16)


def trained(name: str, stages: int, **options: bool) -> list[str]:
    """The layers whose weights have the gradients of a plain step; all others have none."""
    torch.manual_seed(0)
    modules = [nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16)) for _ in range(stages)]
    model = nn.Sequential(*modules)
    nn.MSELoss()(model(x), y).backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad()
    for module in modules:
        fully_shard(module[0], mesh=mesh, **options)
        fully_shard(module, mesh=mesh)
    device = torch.device("cpu")
    parts = [pipelining.PipelineStage(m, i, stages, device) for i, m in enumerate(modules)]
    getattr(pipelining, f"Schedule{name}")(parts, MICRO_BATCHES, loss_fn=nn.MSELoss()).step(x, target=y)
    found = []
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(parameter.grad.full_tensor(), expected[name])
            found.append(name)
    return [name.removesuffix(".weight") for name in found if name.endswith(".weight")]


for name, stages, splits in (
    ("Interleaved1F1B", 3, False),
    ("LoopedBFS", 3, False),
    ("InterleavedZeroBubble", 3, True),
    ("ZBVZeroBubble", 2, True),
):
    every = [f"{stage}.{layer}" for stage in range(stages) for layer in (0, 2)]
    found, gathered = trained(name, stages), trained(name, stages, reshard_after_forward=False)
    print(f"{name}: trained are {found}, with reshard_after_forward=False {gathered}")
    lost = [f"{stage}.0" for stage in range(1, stages)] if splits else []
    assert gathered == every and found == [layer for layer in every if layer not in lost]
PY
