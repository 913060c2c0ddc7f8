#!/usr/bin/env bash
# torch 2.15.0: the schedule visualizer of torch.distributed.pipelining cannot draw GPipe or 1F1B, the two schedules with
# one stage on each rank: their operations end with waits for gradients, for which it has no colour. It draws all
# schedules with two stages on each rank that were tried.
# Seen: KeyError WAIT_REDUCE_GRAD for GPipe and 1F1B; three pictures. Fails if that changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q uv==0.13.8
"$work/venv/bin/uv" pip install -q --python "$work/venv/bin/python" torch==2.15.0 numpy==2.4.6 matplotlib==3.11.2
cd "$work"
"$work/venv/bin/python" - <<'PY'
import torch
from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops, visualize_schedule

found = {}
for schedule in ("GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "ZBVZeroBubble"):
    per_rank = None if schedule in ("GPipe", "1F1B") else 2
    operations = get_schedule_ops(schedule, 4, 8, num_stages_per_rank=per_rank)
    try:
        visualize_schedule(operations, f"{schedule}.png")
        found[schedule] = "drawn"
    except KeyError as error:
        found[schedule] = error.args[0].name
print(torch.__version__, found)
missing = dict.fromkeys(("GPipe", "1F1B"), "WAIT_REDUCE_GRAD")
assert found == missing | dict.fromkeys(("Interleaved1F1B", "LoopedBFS", "ZBVZeroBubble"), "drawn")
PY
