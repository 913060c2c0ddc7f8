"""Kill `repro run` and its workers at random moments, go on until done, compare with a whole sweep.

As a script it does so and writes what came out of it to results/reference/<machine>/campaign.json,
which docs/faults.md quotes: `.venv/bin/python tests/harness/campaign.py --kills 100 --minutes 30`.
"""

import argparse
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from repro.gpipe.schedule.timeline import Timeline
from repro.harness import machine
from repro.harness.journal import Journal, journals
from repro.io.files import write

HERE = Path(__file__).parent
REFERENCE = HERE.parents[1] / "results/reference"
PHASES = ("planning", "starting workers", "measuring", "recording")
Aim = tuple[str, ...]  # the phases that a kill may fall into
AIMS: tuple[Aim, ...] = (PHASES, *((phase,) for phase in PHASES))
# its name, its beginning and its end on the clock of time.monotonic
Phase = tuple[str, float, float]
QUIET = ["--scale", "smoke", "--wandb", "disabled"]
# Fields of a record that are read off a clock.
CLOCKS = ("step_s", "setup_s", "breakdown", "bubble_idle_over_total", "bubble_idle_over_work")


@dataclass
class Counts:
    """What a campaign did, and how its sweeps ended."""

    seed: int  # of the moments at which it killed
    kills: Counter[str] = field(default_factory=Counter)  # by the phase that each fell into
    sweeps: int = 0  # that were killed, some of them several times, until they were done
    sweeps_alike: int = 0  # of these, with the files and the plan of an undisturbed sweep
    runs: int = 0  # of all sweeps
    runs_lost: int = 0  # without exactly one record of each round
    runs_alike: int = 0  # with the record of an undisturbed sweep, readings of a clock aside
    most_processes: int = 0  # that one kill ended
    seconds: float = 0.0

    @property
    def nothing_lost(self) -> bool:
        """Whether every sweep ended as if it had never been killed."""
        alike = (self.sweeps_alike, self.runs_alike) == (self.sweeps, self.runs)
        return alike and self.runs_lost == 0

    def record(self) -> dict[str, Any]:
        """The content of campaign.json."""
        here = machine.detect("smoke")
        names = ("most_processes", "sweeps", "sweeps_alike", "runs", "runs_lost", "runs_alike")
        return {
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "commit": machine.commit(),
            "machine": here.slug,
            "device": here.kind,
            "seed": self.seed,
            "kills": self.kills.total(),
            "kills_while": {phase: self.kills[phase] for phase in PHASES},
            **{name: getattr(self, name) for name in names},
            "seconds": round(self.seconds),
            "minutes": round(self.seconds / 60),
        }


class Start:
    """One start of `repro run` into a results folder, in a session of its own."""

    def __init__(self, results: Path) -> None:
        self._note = results.with_suffix(".phases")
        self._note.write_text(f"planning {time.monotonic()}\n")
        arguments = [HERE / "noted_run.py", self._note, "run", HERE / "tiny_sweep.py"]
        self._process = subprocess.Popen(
            [sys.executable, *arguments, "--results", results, *QUIET],
            env={**os.environ, "PYTHONPATH": str(HERE.parents[1]), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )

    def phases(self) -> list[Phase]:
        """What it has done until now."""
        lines = [line.rpartition(" ") for line in self._note.read_text().split("\n")[:-1]]
        ends = [*(float(end) for _, _, end in lines[1:]), time.monotonic()]
        return [(name, float(at), end) for (name, _, at), end in zip(lines, ends, strict=True)]

    def ended(self) -> bool:
        return self._process.poll() is not None

    def wait(self) -> list[Phase]:
        """Let it end by itself."""
        said, _ = self._process.communicate()
        assert self._process.returncode == 0, said
        return self.phases()

    def kill(self) -> int:
        """SIGKILL to the harness and its workers at once; how many processes that were."""
        group = living(self._process.pid)
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        while living(self._process.pid):
            time.sleep(0.01)
        return len(group)


def living(group: int) -> list[int]:
    """The processes of a group; a killed one is a zombie for a while where nobody waits for it."""
    found = []
    for process in psutil.process_iter(["status"]):
        try:
            if os.getpgid(process.pid) == group and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except ProcessLookupError:
            continue
    return found


def campaign(folder: Path, aims: Sequence[Aim], seed: int, minutes: float = math.inf) -> Counts:
    """A kill for each aim, in as many sweeps as it takes, as far as the minutes allow."""
    print(f"seed {seed}", flush=True)
    rng, counts, left = random.Random(seed), Counts(seed), list(aims)
    began = time.monotonic()
    end = began + 60 * minutes
    whole = folder / "whole"
    usual = Start(whole).wait()
    while left and time.monotonic() < end:
        results = folder / f"sweep{counts.sweeps}"
        start = Start(results)
        while left and time.monotonic() < end and killed(start, usual, left[0], counts, rng):
            left.pop(0)
            start = Start(results)
        start.wait()
        counts.sweeps += 1
        compare(results, whole, counts)
        shutil.rmtree(results)
        counts.seconds = time.monotonic() - began
        print(counts, flush=True)
    return counts


def killed(start: Start, usual: list[Phase], aim: Aim, counts: Counts, rng: random.Random) -> bool:
    """Kill it at a random moment; False where it has ended before.

    The moment is drawn evenly from those that an undisturbed sweep spends in the phases aimed at.
    """
    spans = [phase for phase in usual if phase[0] in aim]
    name, began, ended = rng.choices(spans, [end - at for _, at, end in spans])[0]
    wanted = [phase for phase in usual if phase[0] == name].index((name, began, ended))
    after = rng.uniform(0, ended - began)
    while not start.ended():
        seen = [at for phase, at, _ in start.phases() if phase == name]
        if len(seen) > wanted and time.monotonic() >= seen[wanted] + after:
            counts.kills[start.phases()[-1][0]] += 1
            counts.most_processes = max(counts.most_processes, start.kill())
            return True
        time.sleep(0.001)
    return False


def compare(results: Path, whole: Path, counts: Counts) -> None:
    """Hold a finished sweep against an undisturbed one; count what is lost and what is alike."""
    (mine,), (theirs,) = journals(results), journals(whole)
    for run in theirs.runs:
        counts.runs += 1
        recorded, usual = recorded_of(mine, run), recorded_of(theirs, run)
        counts.runs_lost += len(recorded) != len(usual)
        same_spans = spans(mine.timeline(run)) == spans(theirs.timeline(run))
        counts.runs_alike += recorded == usual and same_spans
    other_files = set(files_of(results)) ^ set(files_of(whole))
    print(f"other files: {sorted(other_files)}", flush=True)
    counts.sweeps_alike += not other_files and plan_line(mine) == plan_line(theirs)


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


def spans(timeline: Timeline | None) -> list[tuple[str, int, int, int]]:
    found = timeline.spans if timeline else ()
    return sorted((span.kind, span.stage, span.micro_batch, span.step) for span in found)


def main() -> None:
    """Run a campaign and write its record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--seed", type=int, default=1811_06965)
    options = parser.parse_args()
    aims = [AIMS[n % len(AIMS)] for n in range(options.kills)]
    with tempfile.TemporaryDirectory() as folder:
        counts = campaign(Path(folder), aims, options.seed, options.minutes)
    path = REFERENCE / machine.detect("smoke").slug / "campaign.json"
    write(path, json.dumps(counts.record(), indent=1).encode() + b"\n")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
