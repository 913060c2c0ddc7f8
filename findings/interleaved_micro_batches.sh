#!/usr/bin/env bash
# torch 2.15.0: interleaved 1F1B takes M micro-batches on K ranks if M is a multiple of M // K, not of K. So with K=4 it
# takes 15 and refuses 14, with K=3 it takes 8 and refuses 7. LoopedBFS takes every M, and where both take it, a step of
# both is equally long if backwards take twice as long as forwards and messages nothing: what 1F1B saves is memory.
# Seen for M = 1 to 16 and two stages on each rank, as below. Fails if that changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q uv==0.13.8
"$work/venv/bin/uv" pip install -q --python "$work/venv/bin/python" torch==2.15.0 numpy==2.4.6
cd "$work"
"$work/venv/bin/python" - <<'PY'
import torch
from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

TIMES = {"FORWARD": 1, "FULL_BACKWARD": 2}


def length(schedule: str, K: int, M: int) -> int:
    ranks = get_schedule_ops(schedule, K, M, num_stages_per_rank=2)
    waiting = [[op for op in ops if op and op.computation_type.name in TIMES] for ops in ranks]
    ended: dict[tuple[str, int, int], int] = {}
    clocks = [0] * K
    while any(waiting):
        for rank, ops in enumerate(waiting):
            if not ops:
                continue
            stage, kind, m = ops[0].stage_index, ops[0].computation_type.name, ops[0].microbatch_index
            if kind == "FORWARD":
                needs = [("FORWARD", stage - 1, m)] if stage else []
            else:
                last = stage == 2 * K - 1
                needs = [("FORWARD", stage, m) if last else ("FULL_BACKWARD", stage + 1, m)]
            if all(need in ended for need in needs):
                start = max([clocks[rank], *(ended[need] for need in needs)])
                clocks[rank] = ended[kind, stage, m] = start + TIMES[kind]
                ops.pop(0)
    return max(clocks)


taken = {}
for K in (2, 3, 4):
    taken[K] = []
    for M in range(1, 17):
        try:
            one = length("Interleaved1F1B", K, M)
        except ValueError as refusal:
            assert "multiple of the number of rounds" in str(refusal)
            length("LoopedBFS", K, M)
            continue
        taken[K].append(M)
        assert one == length("LoopedBFS", K, M), (K, M)
print(torch.__version__, "interleaved 1F1B takes, by K:", taken)
assert taken == {
    2: [1, 2, 3, 4, 6, 8, 10, 12, 14, 16],
    3: [1, 2, 3, 4, 5, 6, 8, 9, 12, 15],
    4: [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 16],
}
PY
