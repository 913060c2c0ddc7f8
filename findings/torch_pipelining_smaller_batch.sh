#!/usr/bin/env bash
# torch 2.15.0: a stage of torch.distributed.pipelining allocates what it receives by the shapes of its first mini-batch. Over gloo
# a smaller message fills a part of the tensor, and the rest stays as it was allocated. So the last, smaller mini-batch of a
# validation set gives as many predictions as a full one: those of its examples, among rows that belong to none. Nothing raises or
# warns, unless TORCH_DISTRIBUTED_DEBUG=DETAIL is set. (A loss would compare the number of labels. Predictions have none.)
# Seen with two ranks, M=4 and mini-batches of 8, 4 and 8 examples: 8 rows for the 4 examples, theirs are rows 0, 2, 4 and 6. The
# others are NaN here, since deterministic algorithms fill new memory with it, and otherwise whatever was in memory.
# Fails if that changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q uv==0.13.8
"$work/venv/bin/uv" pip install -q --python "$work/venv/bin/python" torch==2.15.0 numpy==2.4.6
cd "$work"
cat >predict.py <<'PY'
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining

rank, M = int(sys.argv[1]), 4
dist.init_process_group("gloo", store=dist.FileStore("store", 2), rank=rank, world_size=2)
torch.use_deterministic_algorithms(True)
torch.manual_seed(0)
layers = [nn.Linear(3, 3), nn.Linear(3, 3)]
stage = pipelining.PipelineStage(layers[rank], rank, 2, torch.device("cpu"))
schedule = pipelining.ScheduleGPipe(stage, M)

with torch.no_grad():
    for examples in (8, 4, 8):
        x = torch.randn(examples, 3)
        found = schedule.step(x) if rank == 0 else schedule.step()
        if rank == 1:
            right = layers[1](layers[0](x))
            own = found[:: len(found) // examples]
            nan = found.isnan().any(1).nonzero().flatten().tolist()
            print(f"{examples} examples: {len(found)} predictions, of which NaN: {nan}")
            assert len(found) == 8 and torch.allclose(own, right)
            assert nan == ([] if examples == 8 else [1, 3, 5, 7])
dist.barrier()
dist.destroy_process_group()
PY
export TORCH_DISTRIBUTED_DEBUG=OFF
timeout 120 "$work/venv/bin/python" -W error::UserWarning predict.py 0 2>log0 &
timeout 120 "$work/venv/bin/python" -W error::UserWarning predict.py 1 2>log1 || { kill $!; cat log0 log1; exit 1; }
wait $! || { cat log0; exit 1; }
