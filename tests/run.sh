#!/usr/bin/env bash
# Everything that must hold: pytest, ruff, the format, pyright. All four run even when one fails.
# Arguments go to pytest: ./tests/run.sh tests/gpipe -k schedule
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
./run_all.sh --setup-only || exit 1

export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} # one thread per stage, so that stages on a small machine do not fight
export PYRIGHT_PYTHON_IGNORE_WARNINGS=1      # it would ask the network for a newer release
unset PYTHONDONTWRITEBYTECODE                # else every process of every test compiles torch again
failed=""

check() {
    local name=$1
    shift
    printf '\n== %s: %s\n' "$name" "$*"
    "$@" || failed="$failed $name"
}

# pyright runs beside the tests, whose stages often wait for each other.
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'kill "$pyright" 2>/dev/null; wait; exit 130' INT TERM
TMPDIR=$work .venv/bin/pyright >"$work/pyright.log" 2>&1 &
pyright=$!

# Two workers, each with a server of processes of its own; a file's tests stay on one of them. In the order of how many
# tests they have, long files of few tests would come last.
check pytest .venv/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder "$@"
check ruff .venv/bin/ruff check
check format .venv/bin/ruff format --check
printf '\n== pyright: .venv/bin/pyright\n'
wait "$pyright" || failed="$failed pyright"
cat "$work/pyright.log"

if [ -n "$failed" ]; then
    printf '\ntests/run.sh: FAILED:%s\n' "$failed" >&2
    exit 1
fi
printf '\ntests/run.sh: all passed\n'
