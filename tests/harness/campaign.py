"""Kill `repro run` and its workers at random moments, go on until done, compare with a whole sweep.

As a script it does so and writes what came out of it to results/reference/<machine>/campaign.json,
which docs/faults.md quotes:
`PYTHONPATH=tests .venv/bin/python tests/harness/campaign.py --kills 100`.
"""

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from leftovers import processes, program

from repro.harness import machine
from repro.harness.journal import Journal, journals
from repro.io.files import write

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "results/reference"
# Milliseconds a step; cut evenly, so that the clock decides nothing but times.
SWEEP = (
    "-m repro run sweep --model transformer --model-args L=2 d=32 H=64 heads=2 V=128 T=16"
    " --K 1 2 --M 1 2 --N 4 --balance uniform --warmup 0 --steps 1 --rounds 2"
    " --scale smoke --wandb disabled --results"
)
SEED = 1811_06965
# Fields of a record that are read off a clock.
CLOCKS = ("step_s", "setup_s", "breakdown", "bubble_idle_over_total", "bubble_idle_over_work")


@dataclass
class Counts:
    """What a campaign did, and how its sweeps ended."""

    seed: int  # of the moments at which it killed
    kills: int = 0
    most_processes: int = 0  # that one kill ended
    sweeps: int = 0  # that were killed, some of them several times, until they were done
    sweeps_alike: int = 0  # of these, with the files and the plan of an undisturbed sweep
    runs: int = 0  # of all sweeps
    runs_lost: int = 0  # without exactly one record of each round
    runs_alike: int = 0  # with the record of an undisturbed sweep, readings of a clock aside
    minutes: int = 0

    @property
    def nothing_lost(self) -> bool:
        """Whether every sweep ended as if it had never been killed."""
        alike = (self.sweeps_alike, self.runs_alike) == (self.sweeps, self.runs)
        return alike and self.runs_lost == 0


def campaign(folder: Path, kills: int, seed: int) -> Counts:
    """So many kills, in as many sweeps as it takes."""
    print(f"seed {seed}", flush=True)
    rng, counts = random.Random(seed), Counts(seed)
    whole, began = folder / "whole", time.monotonic()
    assert not killed(whole, counts, None)
    usual_s = time.monotonic() - began
    while counts.kills < kills:
        results = folder / f"sweep{counts.sweeps}"
        while killed(results, counts, rng.uniform(0, usual_s) if counts.kills < kills else None):
            pass
        counts.sweeps += 1
        compare(results, whole, counts)
        shutil.rmtree(results)
        counts.minutes = round((time.monotonic() - began) / 60)
        print(counts, flush=True)
    return counts


def killed(results: Path, counts: Counts, after_s: float | None) -> bool:
    """Whether `repro run` into a results folder was killed after that time, and had not ended."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    command = [sys.executable, *SWEEP.split(), results]
    with program(results, command, env=environment, **output) as harness:
        try:
            said, _ = harness.communicate(timeout=after_s)
        except subprocess.TimeoutExpired:
            counts.kills += 1
            counts.most_processes = max(counts.most_processes, len(processes(results)))
            return True
    assert harness.returncode == 0, said
    return False


def compare(results: Path, whole: Path, counts: Counts) -> None:
    """Hold a finished sweep against an undisturbed one; count what is lost and what is alike."""
    (mine,), (theirs,) = journals(results), journals(whole)
    for run in theirs.runs:
        recorded, usual = recorded_of(mine, run), recorded_of(theirs, run)
        counts.runs += 1
        counts.runs_lost += len(recorded) != len(usual)
        counts.runs_alike += recorded == usual and spans(mine, run) == spans(theirs, run)
    same_files = files_of(results) == files_of(whole)
    counts.sweeps_alike += same_files and plan_line(mine) == plan_line(theirs)


def recorded_of(journal: Journal, run: str) -> list[Any]:
    """What is recorded of each round of a run, but for readings of a clock, with its
    environment."""
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


def plan_line(journal: Journal) -> bytes:
    """The line of the plan, of which there is one."""
    (line,) = [line for line in journal.path.read_bytes().splitlines() if b'"event":"plan"' in line]
    return line


def files_of(results: Path) -> list[str]:
    """All that lies there but logs of workers, without digests; a temporary would show."""
    paths = (str(path.relative_to(results)) for path in results.rglob("*"))
    names = (re.sub(r"-[0-9a-f]{12}\.json\.gz$", "", path) for path in paths)
    return sorted(name for name in names if "/logs" not in name)


def spans(journal: Journal, run: str) -> list[tuple[str, int, int, int]]:
    timeline = journal.timeline(run)
    found = timeline.spans if timeline else ()
    return sorted((span.kind, span.stage, span.micro_batch, span.step) for span in found)


def main() -> None:
    """Run a campaign and write its record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    kills = parser.parse_args().kills
    with tempfile.TemporaryDirectory() as folder:
        counts = campaign(Path(folder), kills, SEED)
    here = machine.detect("smoke")
    about = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "commit": machine.commit()}
    record = about | {"machine": here.slug, "device": here.kind} | asdict(counts)
    path = REFERENCE / here.slug / "campaign.json"
    write(path, json.dumps(record, indent=1).encode() + b"\n")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
