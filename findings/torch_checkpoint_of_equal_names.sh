#!/usr/bin/env bash
# torch 2.15.0: torch.distributed.checkpoint takes tensors with one name on several ranks for copies of one tensor. It does not
# compare their values, and shares out who writes which, so that ranks write equally much. So ranks that save what is their own
# under equal names, as pipeline stages do if each is an nn.Sequential that counts its layers from 0, save a mixture. It loads
# without an error or a warning, and then all stages are equal: a weight of one stage, and its bias of another one.
# Seen with two stages of two layers, each filled with the number of its rank: both load 0 for the first weight and the last bias,
# and 1 for the first bias and the last weight. With the rank's number in the names all come back.
# Fails if that changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q uv==0.13.8
"$work/venv/bin/uv" pip install -q --python "$work/venv/bin/python" torch==2.15.0 numpy==2.4.6
cd "$work"
cat >equal_names.py <<'PY'
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import multiprocessing, nn


def restored(rank: int, folder: str, prefix: str = "") -> dict[str, float]:
    """What a rank has after saving and loading, where it saved its own number everywhere."""
    stage = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    state = {prefix + name: torch.full_like(value, rank) for name, value in stage.state_dict().items()}
    dcp.save(state, checkpoint_id=folder)
    loaded = {name: torch.full_like(value, -1) for name, value in state.items()}
    dcp.load(loaded, checkpoint_id=folder)
    for value in loaded.values():
        assert (value == value.flatten()[0]).all()
    return {name.removeprefix(prefix): value.flatten()[0].item() for name, value in loaded.items()}


def run(rank: int) -> None:
    dist.init_process_group("gloo", store=dist.FileStore("store", 2), rank=rank, world_size=2)
    equal, prefixed = restored(rank, "equal"), restored(rank, "prefixed", f"stage{rank}.")
    print(f"rank {rank} loads {equal} from equal names, {set(prefixed.values())} from its own", flush=True)
    assert equal == {"0.weight": 0, "0.bias": 1, "2.weight": 1, "2.bias": 0}
    assert set(prefixed.values()) == {rank}
    dist.destroy_process_group()


if __name__ == "__main__":
    multiprocessing.spawn(run, nprocs=2)
PY
"$work/venv/bin/python" -W error::UserWarning equal_names.py
