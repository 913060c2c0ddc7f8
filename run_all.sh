#!/usr/bin/env bash
# Set-up, the experiments and the report, in one command.
#
#   ./run_all.sh                      every experiment at this machine's scale, into plots/report.html
#   ./run_all.sh --scale smoke        the same, small: three to five minutes
#   ./run_all.sh table2 --only K=2    arguments go to `repro run` (`.venv/bin/repro run --help`)
#   ./run_all.sh --setup-only         only make .venv, and say nothing when it is there
#
# --results DIR is where results go, --plots DIR where the report goes; paths start at this script's folder.
# What is done is not done again. Set-up happens once, and again when requirements.lock or pyproject.toml change.
# A .venv that you made yourself, with another build of torch, is used as it is.
# PYTHON=/path/to/python3.12 ./run_all.sh chooses the Python (3.11 to 3.14).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# pip trusts the system's certificates, so behind a proxy with a certificate of its own uv has to as well.
export UV_SYSTEM_CERTS=${UV_SYSTEM_CERTS:-1}
UV_VERSION=0.13.8
STAMP=.venv/setup-stamp
LOG=.venv/setup.log

die() {
    printf 'run_all.sh: %s\n' "$1" >&2
    exit 1
}

# What .venv was made from; the path is there because a virtual environment does not survive being moved.
wanted_stamp() {
    pwd
    cksum requirements.lock pyproject.toml
}

was_moved() { [ -e "$STAMP" ] && [ "$(head -n 1 "$STAMP")" != "$PWD" ]; }

find_python() {
    local name found="" names=(python3 python3.13 python3.12 python3.11 python3.14)
    [ -z "${PYTHON:-}" ] || names=("$PYTHON")
    for name in "${names[@]}"; do
        command -v "$name" >/dev/null 2>&1 || continue
        if "$name" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null; then
            echo "$name"
            return
        fi
        found="$found $("$name" -c 'import platform; print(platform.python_version())' 2>/dev/null || true)"
    done
    die "needs Python 3.11 to 3.14, found${found:- none}: install one (apt install python3 python3-venv; \
brew install python@3.13), or name one: PYTHON=/path/to/python3 ./run_all.sh"
}

# The chosen Python, if it can make a virtual environment.
usable_python() {
    local python version
    python=$(find_python) || exit 1
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        die "$python has no venv module: install it (apt install python$version-venv), then start again"
    fi
    echo "$python"
}

mount_of() { df -Pk "$1" 2>/dev/null | awk 'NR == 2 { print $6 }'; }

# Packages are downloaded into uv's cache and linked from there; a cache on another disk would cost the space twice.
check_space() {
    local need_gb=$1 cache=${XDG_CACHE_HOME:-${HOME:-/nowhere}/.cache}/uv free_kb
    if [ -z "${UV_CACHE_DIR:-}" ]; then
        mkdir -p "$cache" 2>/dev/null || true
        if [ ! -w "$cache" ] || [ "$(mount_of "$cache")" != "$(mount_of .)" ]; then
            export UV_CACHE_DIR=$PWD/.venv/uv-cache
        fi
    fi
    free_kb=$(df -Pk . | awk 'NR == 2 { print $4 }')
    [ "$free_kb" -ge $((need_gb * 1000000)) ] ||
        die "set-up needs $need_gb GB of disk and $((free_kb / 1000000)) GB are free here: make room, or \
put this folder on another disk"
}

install_packages() {
    local uv=.venv/bin/uv quiet=""
    [ -t 2 ] || quiet=--quiet
    if [ "$("$uv" --version 2>/dev/null | cut -d' ' -f2)" != "$UV_VERSION" ]; then
        .venv/bin/python -m pip install -q --disable-pip-version-check --retries 2 "uv==$UV_VERSION" >"$LOG" 2>&1 ||
            die "cannot get uv from the package index: check network, proxy or PIP_INDEX_URL, then start again; \
pip's own words are in $LOG"
    fi
    if [ -n "${PIP_INDEX_URL:-}" ]; then export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-$PIP_INDEX_URL}"; fi
    "$uv" pip install $quiet --python .venv/bin/python -r requirements.lock &&
        "$uv" pip install --quiet --python .venv/bin/python --no-deps --no-build-isolation -e . && return
    die "packages could not be installed (see above): check network and disk, then start again; downloads are kept"
}

set_up() {
    local sizes="about 3.3 GB to download (CUDA libraries are most of it), 6.2 GB on disk" need_gb=7 python=""
    if [ "$(uname -s)" = Darwin ]; then
        [ "$(uname -m)" = arm64 ] || die "PyTorch has no builds for Intel Macs any more: use Apple silicon or Linux"
        sizes="about 0.4 GB to download, 1.4 GB on disk" need_gb=2
    fi
    if [ -e "$STAMP" ]; then
        if [ "$(cat "$STAMP")" = "$(wanted_stamp)" ] && .venv/bin/python -c '' 2>/dev/null; then return; fi
    elif .venv/bin/repro --help >/dev/null 2>&1; then
        return # made by hand
    fi
    if ! .venv/bin/python -m pip --version >/dev/null 2>&1 || was_moved; then
        python=$(usable_python)
    fi
    if ! ls .venv/lib/python3*/site-packages/torch/__init__.py >/dev/null 2>&1; then
        check_space "$need_gb"
        echo "Set-up, once: $sizes; about 5 minutes at 100 Mbit/s. Everything goes into .venv."
        echo "The experiments after it: three to five minutes with --scale smoke, 18 to 27 at laptop scale."
    fi
    if [ -n "$python" ]; then
        # `venv --clear` would empty the folder that the link leads to.
        [ ! -L .venv ] || die ".venv is a link to an environment of another folder: remove the link, then start again"
        echo "Making .venv with $("$python" --version)."
        "$python" -m venv --clear .venv || die "$python could not make .venv (see above): is this folder writable?"
        pwd >"$STAMP"
    fi
    install_packages
    rm -rf .venv/uv-cache
    wanted_stamp >"$STAMP"
    echo "Set-up is done. Commands: .venv/bin/repro --help"
}

setup_only="" plots=(--plots plots)
for argument in "$@"; do
    case $argument in
    --setup-only) setup_only=yes ;;
    --plots | --plots=*) plots=() ;;
    -h | --help)
        sed -n '2,/^set /{/^#/s/^# \{0,1\}//p;}' "$0"
        exit 0
        ;;
    esac
done

{ [ -f requirements.lock ] && [ -d repro ]; } || die "belongs into the repository's folder, beside requirements.lock"
set_up
[ -z "$setup_only" ] || exit 0

# Bash 3.2 (macOS) needs this form for an empty list.
exec .venv/bin/repro run "$@" ${plots[@]+"${plots[@]}"}
