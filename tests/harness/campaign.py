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
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from repro.gpipe.schedule.timeline import Timeline

if TYPE_CHECKING:
    from repro.harness.journal import Journal
    from repro.harness.results import Results, Run

HERE = Path(__file__).parent
REFERENCE = HERE.parents[1] / "results/reference"
PHASES = ("planning", "starting workers", "measuring", "recording")
Aim = tuple[str, ...]  # the phases that a kill may fall into
AIMS: tuple[Aim, ...] = (PHASES, *((phase,) for phase in PHASES))
# its name, its beginning and its end on the clock of time.monotonic
Phase = tuple[str, float, float]


@dataclass
class Counts:
    """What a campaign did, and how its sweeps ended.

    Attributes:
        seed: of the moments at which it killed.
        kills: by the phase that each fell into.
        sweeps: that were killed, some of them several times, until they were done.
        sweeps_alike: of these, with the files and the tables of an undisturbed sweep.
        runs: of all sweeps.
        runs_lost: without exactly one record of each round.
        runs_alike: with the bytes of an undisturbed sweep, readings of a clock aside.
        most_processes: that one kill ended.
        seconds: that it all took.
    """

    seed: int
    kills: Counter[str] = field(default_factory=Counter)
    sweeps: int = 0
    sweeps_alike: int = 0
    runs: int = 0
    runs_lost: int = 0
    runs_alike: int = 0
    most_processes: int = 0
    seconds: float = 0.0

    @property
    def nothing_lost(self) -> bool:
        """Whether every sweep ended as if it had never been killed."""
        alike = (self.sweeps_alike, self.runs_alike) == (self.sweeps, self.runs)
        return alike and self.runs_lost == 0

    def record(self) -> dict[str, Any]:
        """The content of campaign.json."""
        from repro.harness import machine

        here = machine.detect("smoke")
        return {
            "date": f"{datetime.now(UTC):%Y-%m-%d}",
            "commit": machine.commit(),
            "machine": here.slug,
            "device": here.kind,
            "seed": self.seed,
            "kills": self.kills.total(),
            "kills_while": {phase: self.kills[phase] for phase in PHASES},
            "most_processes": self.most_processes,
            "sweeps": self.sweeps,
            "sweeps_alike": self.sweeps_alike,
            "runs": self.runs,
            "runs_lost": self.runs_lost,
            "runs_alike": self.runs_alike,
            "seconds": round(self.seconds),
            "minutes": round(self.seconds / 60),
        }


class Start:
    """One start of `repro run` into a results folder, in a session of its own."""

    def __init__(self, results: Path) -> None:
        self._note = results.with_suffix(".phases")
        self._note.write_text(f"planning {time.monotonic()}\n")
        command = [
            sys.executable,
            str(HERE / "noted_run.py"),
            str(self._note),
            "run",
            str(HERE / "tiny_sweep.py"),
            "--results",
        ]
        self._process = subprocess.Popen(
            [*command, str(results), "--scale", "smoke", "--wandb", "disabled"],
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
    """The processes of a group; what is killed stays for a while as a zombie where nobody waits for
    it."""
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
    """Kill it at a random moment; False where it has ended before."""
    sleep_into(start, usual, aim, rng)
    if start.ended():
        return False
    counts.kills[start.phases()[-1][0]] += 1
    counts.most_processes = max(counts.most_processes, start.kill())
    return True


def sleep_into(start: Start, usual: list[Phase], aim: Aim, rng: random.Random) -> None:
    """Until a moment drawn evenly from those that an undisturbed sweep spends in the phases aimed
    at, or the end."""
    spans = [phase for phase in usual if phase[0] in aim]
    name, began, ended = rng.choices(spans, [end - at for _, at, end in spans])[0]
    wanted = [phase for phase in usual if phase[0] == name].index((name, began, ended))
    after = rng.uniform(0, ended - began)
    while not start.ended():
        seen = [at for phase, at, _ in start.phases() if phase == name]
        if len(seen) > wanted and time.monotonic() >= seen[wanted] + after:
            return
        time.sleep(0.001)


def compare(results: Path, whole: Path, counts: Counts) -> None:
    """Hold a finished sweep against an undisturbed one; count what is lost and what is alike."""
    from repro.harness.journal import journals
    from repro.harness.results import of_journals

    (mine,), (theirs,) = journals(results), journals(whole)
    for run in theirs.runs:
        counts.runs += 1
        recorded = recorded_bytes(mine, run)
        usual = recorded_bytes(theirs, run)
        counts.runs_lost += len(recorded) != len(usual)
        counts.runs_alike += recorded == usual and spans(mine.timeline(run)) == spans(
            theirs.timeline(run)
        )
    counts.sweeps_alike += (
        files_of(results) == files_of(whole)
        and plan_bytes(mine) == plan_bytes(theirs)
        and shown_without_clocks(of_journals([mine])) == shown_without_clocks(of_journals([theirs]))
    )


def recorded_bytes(journal: "Journal", run: str) -> list[bytes]:
    """What is recorded of each round of a run, but for readings of a clock, with its
    environment."""
    where = journal.environments.get(run)
    return [
        json.dumps(
            [event.round, str(journal.status(run)), where, stopped(event.records[run])]
        ).encode()
        for event in journal.rounds_of(run)
    ]


def plan_bytes(journal: "Journal") -> bytes:
    """The line of the plan, of which there is one."""
    (line,) = [line for line in journal.path.read_bytes().splitlines() if b'"event":"plan"' in line]
    return line


def files_of(results: Path) -> list[str]:
    """Everything that lies there, without digests; a temporary or a worker's log would show."""
    paths = (str(path.relative_to(results)) for path in results.rglob("*"))
    return sorted(re.sub(r"-[0-9a-f]{12}\.json\.gz$", "", path) for path in paths)


def spans(timeline: Timeline | None) -> list[tuple[str, int, int, int]]:
    if timeline is None:
        return []
    return sorted((span.kind, span.stage, span.micro_batch, span.step) for span in timeline.spans)


def shown_without_clocks(results: "Results") -> list[str]:
    """Every table of the report, with every number that was read off a clock replaced by one."""
    from repro.report.tables import all_tables

    def still(run: "Run") -> "Run":
        rounds = (replace(each, values=stopped(dict(each.values))) for each in run.rounds)
        return replace(run, rounds=tuple(rounds))

    shown = replace(results, runs=[still(run) for run in results.runs])
    tables = [table.markdown() for table in all_tables(shown)]
    return [str(shown.rows.to_json()), *tables]


def stopped(line: dict[str, Any]) -> dict[str, Any]:
    clocks = clock_fields()
    return {name: constant(value) if name in clocks else value for name, value in line.items()}


def constant(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: constant(part) for name, part in value.items()}
    return [constant(part) for part in value] if isinstance(value, list) else 0.5


def clock_fields() -> set[str]:
    """The fields of a record that change when nothing but the clock's readings
    do."""
    from tiny_sweep import experiment

    from repro.gpipe import make_schedule
    from repro.gpipe.schedule.replay import replay
    from repro.harness.tasks.train import Step, measured
    from repro.models import build

    spec = experiment().groups[0].runs[-1]
    schedule = make_schedule(spec.schedule, spec.K, spec.M, spec.checkpoint)

    def line(forward: float) -> dict[str, Any]:
        timeline = replay(schedule, lambda action: forward if action.kind == "F" else 1.0)
        step = Step(timeline.step_time, 0.0, timeline)
        model = build(spec.model, **spec.model_args)
        return measured(model, spec, (1, 1), [step], [1, 1], forward).record.model_dump()

    slow, quick = line(2.0), line(1.0)
    return {name for name in slow if slow[name] != quick[name]}


def main() -> None:
    """Run a campaign and write its record."""
    from repro.harness import machine
    from repro.io.files import write

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
