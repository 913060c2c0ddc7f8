#!/usr/bin/env bash
# torch 2.15.0: under the zero-bubble schedules of torch.distributed.pipelining two parameters of one shape that a layer adds to
# each other get wrong gradients: a weight and its learnt change, or the embeddings of positions and of segments.
# torch.autograd.grad gives the gradient of a sum to both parts as one tensor, and the backward for the weights makes that tensor
# the .grad of both. So each later micro-batch is added to it twice, and it is divided by M twice. Nothing warns. (With backward()
# each parameter gets a copy of its own.)
# Seen with M=4 in the second of three stages: (g1 + 2 g2 + 2 g3 + 2 g4) / 16 where (g1 + g2 + g3 + g4) / 4 is right; gi is the
# gradient of micro-batch i. All other parameters are right, and under interleaved 1F1B all are.
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
from torch import Tensor, nn
from torch.distributed import pipelining

M = 4
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
x, y = torch.randn(2, 8, 4)


class Changed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))
        self.change = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.weight + self.change)


layers = [nn.Linear(4, 4), Changed(), nn.Linear(4, 4)]
model = nn.Sequential(*layers)


def gradients(run) -> dict[str, Tensor]:
    model.zero_grad()
    run()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def pipelined(schedule) -> None:
    stages = [pipelining.PipelineStage(n, i, 3, torch.device("cpu")) for i, n in enumerate(layers)]
    schedule(stages, M, loss_fn=nn.MSELoss()).step(x, target=y)


each = [
    gradients(lambda: nn.functional.mse_loss(model(inputs), targets).backward())
    for inputs, targets in zip(x.chunk(M), y.chunk(M), strict=True)
]
right = {name: sum(g[name] for g in each) / M for name in each[0]}
twice = {name: (2 * sum(g[name] for g in each) - each[0][name]) / M**2 for name in each[0]}
for schedule, wrong in (
    (pipelining.ScheduleInterleaved1F1B, set()),
    (pipelining.ScheduleInterleavedZeroBubble, {"1.weight", "1.change"}),
):
    found = gradients(lambda schedule=schedule: pipelined(schedule))
    names = {name for name in found if not torch.allclose(found[name], right[name])}
    print(schedule.__name__, "wrong:", sorted(names))
    assert names == wrong and all(torch.allclose(found[name], twice[name]) for name in names)
assert layers[1].weight.grad is layers[1].change.grad
PY
