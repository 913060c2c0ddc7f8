#!/usr/bin/env bash
# triton 3.9.0: a program that imports it and ends after gc.freeze(), as Python advises before a fork, prints that nanobind
# leaked 4 instances, 64 types and 514 functions. Without the call nothing is printed: the last collection does not see frozen
# objects. Seen: no line, then 30 lines. Fails if that changes.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q --no-deps triton==3.9.0
lines() { "$work/venv/bin/python" -c "$1" 2>&1 | wc -l; }
without=$(lines "import triton")
with=$(lines "import gc, triton; gc.freeze()")
echo "triton 3.9.0: $without lines at exit, $with after gc.freeze()"
"$work/venv/bin/python" -c "import gc, triton; gc.freeze()" 2>&1 | grep leaked | grep -v " - "
[ "$without" = 0 ] && [ "$with" -gt 20 ]
