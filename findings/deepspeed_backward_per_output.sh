#!/usr/bin/env bash
# DeepSpeed 0.19.8 with torch 2.15.0: a pipeline stage that hands on n tensors runs a backward for each of them in each
# micro-batch. So layers that lead to all n run theirs n times, as before a skip connection, two streams, or an auxiliary loss
# beside the activation. A profile of one stage does not show it, since a last stage hands on nothing. Gradients are right, and
# nothing warns.
# (Packed into one tensor the same outputs cost one backward.)
# Seen with four linear layers whose output is handed on 1, 2 or 3 times, scaled differently: 4, 8 and 12 backwards of layers,
# and 11, 18 and 25 products of matrices with the forward's 4, in each micro-batch. Stacked into one tensor: 4 and 11.
# Fails if that changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q uv==0.13.8
"$work/venv/bin/uv" pip install -q --python "$work/venv/bin/python" torch==2.15.0 numpy==2.4.6 deepspeed==0.19.8
cd "$work"
export TORCH_EXTENSIONS_DIR="$work/extensions"
cat >outputs.py <<'PY'
import copy
import os

os.environ["DS_ACCELERATOR"] = "cpu"
import deepspeed
import torch
import torch.distributed as dist
from torch import multiprocessing, nn
from torch.utils.flop_counter import FlopCounterMode

WIDTH, BATCH, MICRO_BATCHES = 16, 4, 3
PRODUCT = 2 * BATCH * WIDTH * WIDTH  # operations of one layer


class First(nn.Module):
    def __init__(self, outputs: int, stacked: bool):
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(4)])
        self.outputs, self.stacked = outputs, stacked

    def forward(self, x):
        x = self.layers(x)
        outputs = tuple((i + 1) * x for i in range(self.outputs))
        return torch.stack(outputs) if self.stacked else outputs


class Last(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs):
        return self.layer(sum(inputs))


def check(rank: int, outputs: int, stacked: bool) -> None:
    torch.manual_seed(0)
    layers = [First(outputs, stacked), Last()]
    batch = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)
    nn.functional.mse_loss(nn.Sequential(*layers)(batch[0]), batch[1]).backward()
    right = [p.grad for p in layers[rank].parameters()]
    settings = {"num_stages": 2, "loss_fn": nn.MSELoss(), "partition_method": "uniform"}
    module = deepspeed.pipe.PipelineModule(copy.deepcopy(layers), **settings)
    backwards = []
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            layer.register_full_backward_hook(lambda *_: backwards.append(1))
    config = {"train_micro_batch_size_per_gpu": BATCH, "gradient_accumulation_steps": MICRO_BATCHES, "gradient_clipping": 0}
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=config)
    before = [p.detach().clone() for p in module.parameters()]
    with FlopCounterMode(display=False) as counter:
        engine.train_batch(iter([batch] * MICRO_BATCHES))
    for a, b, gradient in zip(before, module.parameters(), right, strict=True):
        assert (a - b.detach() - gradient).norm() < 1e-4 * gradient.norm()
    if rank == 0:
        ran, products = len(backwards) // MICRO_BATCHES, counter.get_total_flops() // PRODUCT // MICRO_BATCHES
        form = " in one tensor" if stacked else ""
        print("RESULT", f"outputs: {outputs}{form}; backwards of layers: {ran}; products: {products}", flush=True)
        times = 1 if stacked else outputs
        assert ran == 4 * times and products == 4 + 7 * times


def run(rank: int) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    dist.init_process_group("gloo", store=dist.FileStore("store", 2), rank=rank, world_size=2)
    deepspeed.init_distributed("gloo")
    for outputs in (1, 2, 3):
        check(rank, outputs, stacked=False)
    check(rank, 3, stacked=True)


if __name__ == "__main__":
    multiprocessing.spawn(run, nprocs=2)
PY
"$work/venv/bin/python" -W ignore outputs.py >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
sed -n 's/^RESULT //p' "$work/log"
