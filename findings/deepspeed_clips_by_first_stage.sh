#!/usr/bin/env bash
# DeepSpeed 0.19.8: in float32 without ZeRO, `gradient_clipping` of a PipelineModule limits the gradients by the norm of the first
# stage's alone. As in tensor parallelism, only the first rank of a model's group counts what is not marked as split, and the
# stages are such a group. So large gradients of later stages are not clipped, or the limit is passed by as much as they exceed
# those of the first stage, and one model is clipped differently by each number of stages. Nothing warns.
# Seen with two stages, of which the second has most of the gradient: with half of the whole norm as the limit nothing is clipped,
# and with half of the first stage's norm the gradient is left 2.3 times as long as the limit. Without a limit, and on one stage,
# the step is that of plain training.
# Fails if that changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q uv==0.13.8
"$work/venv/bin/uv" pip install -q --python "$work/venv/bin/python" torch==2.15.0 numpy==2.4.6 deepspeed==0.19.8
cd "$work"
cat >clip.py <<'PY'
import copy
import os

os.environ["DS_ACCELERATOR"] = "cpu"
import deepspeed
import torch
import torch.distributed as dist
from torch import multiprocessing, nn


torch.manual_seed(0)
LAYERS = [nn.Linear(4, 4) for _ in range(4)]
X, Y = torch.randn(4, 4), 10 * torch.randn(4, 4)


def norm(tensors: list[torch.Tensor]) -> float:
    return torch.stack([t.norm() for t in tensors]).norm().item()


def moved(limit: float, stages: int) -> list[torch.Tensor]:
    """How far a step of SGD with a rate of 1 moves this rank's weights."""
    config = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2, "gradient_clipping": limit}
    settings = {"num_stages": stages, "loss_fn": nn.MSELoss(), "partition_method": "uniform"}
    module = deepspeed.pipe.PipelineModule(copy.deepcopy(LAYERS), **settings)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=config)
    before = [p.detach().clone() for p in module.parameters()]
    engine.train_batch(iter([(X, Y)] * 2))
    return [a - b.detach() for a, b in zip(before, module.parameters(), strict=True)]


def run(rank: int, stages: int) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(stages))
    store = dist.FileStore(f"store{stages}", stages)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=stages)
    deepspeed.init_distributed("gloo")
    nn.functional.mse_loss(nn.Sequential(*LAYERS)(X), Y).backward()
    gradients = [p.grad for layer in LAYERS for p in layer.parameters()]
    share = len(gradients) // stages
    own, first, whole = gradients[rank * share :][:share], norm(gradients[:share]), norm(gradients)
    for limit in (0, whole / 2, first / 2):
        factors = [(a.norm() / b.norm()).item() for a, b in zip(moved(limit, stages), own, strict=True)]
        right = limit / whole if limit else 1
        print(f"K={stages}, limit {limit:.3g}: gradients times {factors[0]:.4f}, right {right:.4f}")
        seen = min(1, limit / first) if limit else 1
        assert all(abs(factor - seen) < 1e-4 for factor in factors)


if __name__ == "__main__":
    for stages in (1, 2):
        multiprocessing.spawn(run, (stages,), nprocs=stages)
PY
"$work/venv/bin/python" -W ignore clip.py >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
grep "gradients times" "$work/log"
