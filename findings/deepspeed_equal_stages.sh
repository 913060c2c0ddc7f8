#!/usr/bin/env bash
# DeepSpeed 0.19.8 with torch 2.15.0: a PipelineModule of LayerSpecs, which are there so that each rank makes its own layers
# alone, begins with stages of equal weights. All ranks are seeded alike, and each starts to make its layers with the same
# random numbers. So a deep model of equal layers begins as one stage that is repeated K times. Nor is it the model that
# this seed gives on one stage. Dropout goes on with the same numbers: in each micro-batch it drops the same activations in all
# stages, for layers that are passed as modules too. Nothing warns. With seed_layers=True the weights and what is dropped
# differ.
# Seen with four layers after torch.manual_seed(0): 4 different layers with one stage, 2 with two and 1 with four; passed as
# modules always 4; and in 6 micro-batches of training 6 different masks with two and with four stages, where there should be 12
# and 24.
# Fails if that changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q uv==0.13.8
"$work/venv/bin/uv" pip install -q --python "$work/venv/bin/python" torch==2.15.0 numpy==2.4.6 deepspeed==0.19.8
cd "$work"
export TORCH_EXTENSIONS_DIR="$work/extensions"
cat >stages.py <<'PY'
import os

os.environ["DS_ACCELERATOR"] = "cpu"
import deepspeed
import torch
import torch.distributed as dist
from deepspeed.pipe import LayerSpec, PipelineModule
from torch import multiprocessing, nn

LAYERS, WIDTH, MICRO_BATCHES = 4, 16, 6


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.linear(x)


def of_all_ranks(own: list) -> list:
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, own)
    return [item for part in parts for item in part]


def different(make, stages: int, **seeds) -> int:
    """How many of the layers have weights of their own."""
    torch.manual_seed(0)
    layers = [make() for _ in range(LAYERS)]
    module = PipelineModule(layers, num_stages=stages, partition_method="uniform", **seeds)
    weights = of_all_ranks([tuple(p.flatten().tolist()) for p in module.parameters() if p.ndim == 2])
    assert len(weights) == LAYERS
    return len(set(weights))


def masks(stages: int, **seeds) -> int:
    """How many different masks the dropouts of all stages draw, one for each stage and micro-batch."""
    drawn = []
    dropout = nn.Dropout(0.5)
    dropout.register_forward_hook(lambda _, inputs, output: drawn.append(tuple((output != 0).flatten().tolist())))
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH) if i % 2 == 0 else dropout for i in range(2 * stages)]
    module = PipelineModule(layers, num_stages=stages, loss_fn=nn.MSELoss(), partition_method="uniform", **seeds)
    config = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": MICRO_BATCHES}
    optimizer = torch.optim.SGD(module.parameters(), lr=0.0)
    engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=config)
    engine.train_batch(iter([(torch.ones(4, WIDTH), torch.ones(4, WIDTH))] * MICRO_BATCHES))
    drawn = of_all_ranks(drawn)
    assert len(drawn) == stages * MICRO_BATCHES
    return len(set(drawn))


def run(rank: int, stages: int) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(stages))
    store = dist.FileStore(f"store{stages}", stages)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=stages)
    deepspeed.init_distributed("gloo")
    specs = different(lambda: LayerSpec(Layer), stages)
    modules = different(Layer, stages)
    seeded = different(lambda: LayerSpec(Layer), stages, seed_layers=True)
    dropped, dropped_seeded = masks(stages), masks(stages, seed_layers=True)
    if rank == 0:
        print("RESULT", f"K={stages}: {specs} of {LAYERS} layers differ as specs, {modules} as modules, {seeded} with seed_layers;",
              f"{dropped} of {stages * MICRO_BATCHES} masks differ, {dropped_seeded} with seed_layers", flush=True)
    assert specs == LAYERS // stages and modules == seeded == LAYERS
    assert dropped == MICRO_BATCHES and dropped_seeded == stages * MICRO_BATCHES


if __name__ == "__main__":
    for stages in (1, 2, 4):
        multiprocessing.spawn(run, (stages,), nprocs=stages)
PY
"$work/venv/bin/python" -W ignore stages.py >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
sed -n 's/^RESULT //p' "$work/log"
