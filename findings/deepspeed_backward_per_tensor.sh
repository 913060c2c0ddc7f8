#!/usr/bin/env bash
# DeepSpeed 0.19.8: a stage of its pipeline that sends n tensors runs its backward n times for each micro-batch. The engine calls
# Tensor.backward() for one output after the other with retain_graph, where one call of torch.autograd.backward would do for all.
# The gradients add up to the right ones, but the layers behind all outputs are differentiated again for each: a skip past a stage
# costs as much as another backward of the stages before it. A stage whose layers run in a re-entrant torch.utils.checkpoint is
# recomputed as often too, so batch norm counts a micro-batch once more each time. Hooks on gradients see parts of the gradient.
# Seen on two stages with M=4 where the first sends one, two or three tensors that depend on all of its layers: backwards of its
# first layer in a step. The gradients are those of plain training.
# Fails if that changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q uv==0.13.8
"$work/venv/bin/uv" pip install -q --python "$work/venv/bin/python" torch==2.15.0 numpy==2.4.6 deepspeed==0.19.8
cd "$work"
cat >twice.py <<'PY'
import copy
import os

os.environ["DS_ACCELERATOR"] = "cpu"
import deepspeed
import torch
import torch.distributed as dist
from torch import Tensor, multiprocessing, nn

M = 4


class Fork(nn.Module):
    """[N, 8] -> n tensors [N, 8], all of which depend on all layers."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        y = self.layers(x)
        return y if self.n == 1 else tuple(y * k for k in range(1, self.n + 1))


class Join(nn.Module):
    """Their sum through a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, given: Tensor | tuple[Tensor, ...]) -> Tensor:
        return self.linear(given if isinstance(given, Tensor) else sum(given))


def run(rank: int) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    dist.init_process_group("gloo", store=dist.FileStore("store", 2), rank=rank, world_size=2)
    deepspeed.init_distributed("gloo")
    for n in (1, 2, 3):
        torch.manual_seed(0)
        layers = [Fork(n), Join()]
        plain = copy.deepcopy(layers)
        x, y = torch.randn(8, 8), torch.randn(8, 4)
        loss_fn, optimize = nn.MSELoss(), lambda parameters: torch.optim.SGD(parameters, lr=0.1)
        module = deepspeed.pipe.PipelineModule(layers, num_stages=2, loss_fn=loss_fn, partition_method="uniform")
        config = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": M, "gradient_clipping": 0.0}
        engine, *_ = deepspeed.initialize(model=module, optimizer=optimize(module.parameters()), config=config)
        backwards = 0

        def count(*_) -> None:
            nonlocal backwards
            backwards += 1

        if rank == 0:
            layers[0].layers[2].register_full_backward_hook(count)
        engine.train_batch(iter(zip(x.chunk(M), y.chunk(M), strict=True)))
        optimizer = optimize([p for layer in plain for p in layer.parameters()])
        loss_fn(plain[1](plain[0](x)), y).backward()
        optimizer.step()
        for got, right in zip(module.parameters(), plain[rank].parameters(), strict=True):
            torch.testing.assert_close(got, right)
        if rank == 0:
            print(f"the first stage sends {n}: {backwards} backwards of its layer for {M} micro-batches", flush=True)
            assert backwards == n * M


if __name__ == "__main__":
    multiprocessing.spawn(run, nprocs=2)
PY
"$work/venv/bin/python" -W ignore twice.py >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
grep "first stage" "$work/log"
