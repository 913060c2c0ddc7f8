#!/usr/bin/env bash
# Everything that must hold: pytest, ruff, the format, pyright. All four run even when one fails.
# Arguments go to pytest: ./tests/run.sh tests/gpipe -k schedule
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
./run_all.sh --setup-only || exit 1

export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} # one thread per stage, so that stages on a small machine do not fight
export PYRIGHT_PYTHON_IGNORE_WARNINGS=1      # it would ask the network for a newer release
failed=""

check() {
    local name=$1
    shift
    printf '\n== %s: %s\n' "$name" "$*"
    "$@" || failed="$failed $name"
}

check pytest .venv/bin/python -m pytest "$@"
check ruff .venv/bin/ruff check
check format .venv/bin/ruff format --check
check pyright .venv/bin/pyright

if [ -n "$failed" ]; then
    printf '\ntests/run.sh: FAILED:%s\n' "$failed" >&2
    exit 1
fi
printf '\ntests/run.sh: all passed\n'
