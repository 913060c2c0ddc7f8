#!/usr/bin/env bash
# torch 2.15.0: with --max-restarts, torchrun restarts all ranks on the store of the ranks before them. The ranks share the store of
# its agent, and the agent stays. So a key that marks a failure, a vote or a turn is still set after the restart, and ranks that
# read it act on what happened before. With TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 the ranks get a new store at each restart.
# Seen with one rank that sets a key and fails: after the restart the key is there, and with that variable it is not.
# Fails if that changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q uv==0.13.8
"$work/venv/bin/uv" pip install -q --python "$work/venv/bin/python" torch==2.15.0 numpy
cat >"$work/script.py" <<'PY'
import os, sys
import torch.distributed as dist

store, _, _ = next(dist.rendezvous("env://"))
print(store.check(["key"]), flush=True)
store.set("key", "1")
sys.exit(os.environ["TORCHELASTIC_RESTART_COUNT"] == "0")
PY
seen() {
    "$work/venv/bin/torchrun" --standalone --max-restarts 1 "$work/script.py" 2>"$work/log" | xargs || { cat "$work/log"; exit 1; }
}
shared=$(seen)
separate=$(TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 seen)
echo "whether the key is there before and after the restart: $shared; with the variable: $separate"
[ "$shared" = "False True" ] && [ "$separate" = "False False" ]
