"""Kills at random moments: every run is recorded exactly once, as in an undisturbed sweep."""

import os
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from leftovers import program

from repro.harness.journal import Journal, journals

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.slow]

ROOT = Path(__file__).parents[2]
# Milliseconds a step; cut evenly, so that the clock decides nothing but times.
SWEEP = (
    "-m repro run sweep --model transformer --model-args L=2 d=32 H=64 heads=2 V=128 T=16"
    " --K 1 2 --M 1 2 --N 4 --balance uniform --warmup 0 --steps 1 --rounds 2"
    " --scale smoke --wandb disabled --results"
)
# Fields of a record that are read off a clock.
CLOCKS = ("step_s", "setup_s", "breakdown", "bubble_idle_over_total", "bubble_idle_over_work")


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(1, marks=pytest.mark.timeout(300)),  # three sweeps, one after the other
        pytest.param(100, marks=[pytest.mark.campaign, pytest.mark.timeout(3 * 3600)]),
    ],
)
def test_kills_lose_nothing(tmp_path: Path, kills: int):
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    rng, whole, seconds = random.Random(seed), tmp_path / "whole", []
    assert not killed(whole, None, seconds)
    while kills:
        results = tmp_path / "sweep"
        while killed(results, rng.uniform(0, seconds[0]) if kills else None, seconds):
            kills -= 1
        assert outcome(results) == outcome(whole)
        shutil.rmtree(results)


def killed(results: Path, after_s: float | None, seconds: list[float]) -> bool:
    """Whether `repro run` into a results folder was killed after that time, and had not ended."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    command = [sys.executable, *SWEEP.split(), results]
    began = time.monotonic()
    with program(results, command, env=environment, **output) as harness:
        try:
            said, _ = harness.communicate(timeout=after_s)
        except subprocess.TimeoutExpired:
            return True
    assert harness.returncode == 0, said
    seconds.append(time.monotonic() - began)
    return False


def outcome(results: Path) -> tuple[Any, ...]:
    """All that a sweep leaves but readings of a clock, digests and logs of workers."""
    (journal,) = journals(results)
    (plan,) = [line for line in journal.path.read_bytes().splitlines() if b'"event":"plan"' in line]
    paths = (str(path.relative_to(results)) for path in results.rglob("*"))
    names = (re.sub(r"-[0-9a-f]{12}\.json\.gz$", "", path) for path in paths)
    files = sorted(name for name in names if "/logs" not in name)  # a temporary would show
    return plan, files, [(recorded(journal, run), spans(journal, run)) for run in journal.runs]


def recorded(journal: Journal, run: str) -> list[Any]:
    where, status = journal.environments.get(run), str(journal.status(run))
    return [
        (event.round, status, where, without_clocks(event.records[run]))
        for event in journal.rounds_of(run)
    ]


def without_clocks(value: Any, clock: bool = False) -> Any:
    """A record with the same number for every reading of a clock."""
    if isinstance(value, dict):
        return {n: without_clocks(part, clock or n in CLOCKS) for n, part in value.items()}
    if isinstance(value, list):
        return [without_clocks(part, clock) for part in value]
    return 0.5 if clock else value


def spans(journal: Journal, run: str) -> list[tuple[str, int, int, int]]:
    timeline = journal.timeline(run)
    found = timeline.spans if timeline else ()
    return sorted((span.kind, span.stage, span.micro_batch, span.step) for span in found)
