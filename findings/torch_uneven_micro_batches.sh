#!/usr/bin/env bash
# torch 2.15.0: the schedules of torch.distributed.pipelining take a mini-batch that M does not divide, and train on another loss
# than its mean. `step` cuts it into M parts of unequal size, each part's mean loss counts 1/M, and nothing warns. So an example of
# a smaller part counts more: with N=9 and M=4 the parts have 3, 2, 2 and 2 examples, which count 1/12 or 1/8 each and not 1/9.
# Seen with a linear model of two stages: the gradient is exactly the one with these weights. With M=3 it is that of the mean.
# Fails if that changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q uv==0.13.8
"$work/venv/bin/uv" pip install -q --python "$work/venv/bin/python" torch==2.15.0 numpy
"$work/venv/bin/python" -W error::UserWarning - <<'PY' 2>"$work/log" || { cat "$work/log"; exit 1; }
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining

N = 9
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
torch.manual_seed(0)
x, y = torch.randn(N, 4, dtype=torch.float64), torch.randn(N, 4, dtype=torch.float64)
layers = [nn.Linear(4, 4, dtype=torch.float64) for _ in range(2)]
parameters = [p for layer in layers for p in layer.parameters()]


def gradients(run):
    for parameter in parameters:
        parameter.grad = None
    run()
    return torch.cat([p.grad.flatten() for p in parameters])


def weighted(weights):
    """The gradient where each example's loss counts so much."""
    losses = (layers[1](layers[0](x)) - y).square().mean(1)
    (torch.tensor(weights, dtype=torch.float64) @ losses).backward()


def pipelined(micro_batches):
    stages = [pipelining.PipelineStage(n, i, 2, torch.device("cpu")) for i, n in enumerate(layers)]
    schedule = pipelining.ScheduleInterleaved1F1B(stages, micro_batches, loss_fn=nn.MSELoss())
    schedule.step(x, target=y)


mean = gradients(lambda: weighted([1 / N] * N))
uneven = gradients(lambda: weighted([1 / 12] * 3 + [1 / 8] * 6))
even, seen = gradients(lambda: pipelined(3)), gradients(lambda: pipelined(4))
print(f"M=3: {(even - mean).norm() / mean.norm():.1e} from the gradient of the mean loss")
print(f"M=4: {(seen - mean).norm() / mean.norm():.1e}")
print(f"M=4: {(seen - uneven).norm() / mean.norm():.1e} from that with the weights 1/12 and 1/8")
assert torch.allclose(even, mean) and torch.allclose(seen, uneven) and not torch.allclose(seen, mean)
PY
