#!/usr/bin/env bash
# wandb 0.31.0, offline: a value logged as {"step": {"s": 1.5}} has the name `step.s` in the history. In the summary that
# `wandb leet inspect --summary` prints it is nested, while a value logged as "x.y" stays flat. So one name that has a dot
# can mean either, and a reader that joins history and summary by names loses the nested ones.
# Seen: step.s and x.y in the history; {"step": {"s": 1.5}, "x.y": 3} in the summary. Fails if that changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q uv==0.13.8
"$work/venv/bin/uv" pip install -q --python "$work/venv/bin/python" wandb==0.31.0
cd "$work"
"$work/venv/bin/python" - <<'PY'
import json
import os
import subprocess
import sys
from pathlib import Path

import wandb

os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
with wandb.init(project="nested", dir=".") as run:
    run.log({"step": {"s": 1.5}, "x.y": 3})
(file,) = Path().glob("wandb/offline-run-*/*.wandb")
leet = [str(Path(sys.executable).parent / "wandb"), "leet", "inspect", "--json", str(file)]
lines = subprocess.run(leet, capture_output=True, text=True, check=True).stdout.splitlines()
(history,) = [record["history"]["item"] for record in map(json.loads, lines) if record["type"] == "history"]
summary = json.loads(subprocess.run([*leet, "--summary"], capture_output=True, check=True).stdout)["summary"]
found = [{k: v for k, v in values.items() if k[0] != "_"} for values in (history, summary)]
print(wandb.__version__, "history", found[0], "summary", found[1])
assert found == [{"step.s": 1.5, "x.y": 3}, {"step": {"s": 1.5}, "x.y": 3}]
PY
