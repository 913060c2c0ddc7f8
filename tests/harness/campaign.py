"""Kill `repro run` and its workers at random moments, go on until done, compare with a whole sweep.

As a script it does so and writes what came out of it to results/reference/<machine>/campaign.json,
which docs/faults.md quotes: `.venv/bin/python tests/harness/campaign.py --kills 100 --minutes 30`.
"""

import argparse
import json
import math
import os
import random
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
    from tiny_sweep import experiment

    from repro.harness.results import load

    mine, theirs = load(results), load(whole)
    rounds = experiment().rounds
    recorded = {run.id: run for run in mine.runs}
    lines = without_clocks(results)
    usual_lines = without_clocks(whole)
    for usual in theirs.runs:
        counts.runs += 1
        run = recorded.get(usual.id)
        # A line of a round that was not committed would stand in the file, but not among rounds.
        if run is None or len(run.rounds) != rounds or stored_lines(results, usual.id) != rounds:
            counts.runs_lost += 1
            continue
        counts.runs_alike += (
            lines[usual.id] == usual_lines[usual.id]
            and small_files(results, usual.id) == small_files(whole, usual.id)
            and spans(mine.timeline(run)) == spans(theirs.timeline(usual))
        )
    counts.sweeps_alike += (
        files_of(results) == files_of(whole)
        and listings(results) == listings(whole)
        and shown_without_clocks(results) == shown_without_clocks(whole)
    )


def stored_lines(results: Path, run: str) -> int:
    """Lines of the file with a run's rounds, and 0 without the file."""
    paths = list(results.glob(f"*/*/*/{run}/metrics.jsonl"))
    return sum(len(path.read_text().splitlines()) for path in paths)


def small_files(results: Path, run: str) -> list[bytes]:
    """What is recorded of a run besides its rounds and spans."""
    names = ("env.json", "spec.json", "status.json")
    return [path.read_bytes() for name in names for path in results.glob(f"*/*/*/{run}/{name}")]


def listings(results: Path) -> list[bytes]:
    """What is recorded of experiments."""
    return [path.read_bytes() for path in sorted(results.rglob("experiment.json"))]


def files_of(results: Path) -> list[str]:
    """Everything that lies there; a temporary or a worker's log would show."""
    return sorted(str(path.relative_to(results)) for path in results.rglob("*"))


def spans(timeline: Timeline | None) -> list[tuple[str, int, int, int]]:
    if timeline is None:
        return []
    return sorted((span.kind, span.stage, span.micro_batch, span.step) for span in timeline.spans)


def without_clocks(results: Path) -> dict[str, list[dict[str, Any]]]:
    """Run -> its records, with every number that was read off a clock replaced by the same one."""
    from repro.harness.results import load

    lines = {}
    for folder in load(results).folders:
        markers, about = folder.markers(), folder.about()
        assert about is not None
        for run in about.runs:
            records = folder.records(run, markers)
            lines[run] = [stopped(record.model_dump(mode="json")) for record in records]
    return lines


def shown_without_clocks(results: Path) -> list[str]:
    """Every table of the report, with every number that was read off a clock replaced likewise."""
    from repro.harness.results import load
    from repro.harness.spec import digest
    from repro.report.tables import all_tables

    still = results.with_name("still")
    shutil.copytree(results, still)
    every_line = without_clocks(still)
    for folder in load(still).folders:
        markers, about = folder.markers(), folder.about()
        assert about is not None
        for run in about.runs:
            lines = every_line[run]
            text = "".join(json.dumps(line) + "\n" for line in lines)
            (folder.path / run / "metrics.jsonl").write_text(text)
            for line in lines:
                markers[line["round"]].runs[run] = digest(line)
        for name, marker in markers.items():
            (folder.path / "rounds" / f"{name}.json").write_text(marker.model_dump_json())
    stopped_results = load(still)
    shutil.rmtree(still)
    steps = stopped_results.rounds["step_s"].tolist()
    assert steps == [0.5] * len(steps)
    tables = [table.markdown() for table in all_tables(stopped_results)]
    return [str(stopped_results.rows.to_json()), *tables]


def stopped(line: dict[str, Any]) -> dict[str, Any]:
    clocks = clock_fields()
    return {name: constant(value) if name in clocks else value for name, value in line.items()}


def constant(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: constant(part) for name, part in value.items()}
    return [constant(part) for part in value] if isinstance(value, list) else 0.5


def clock_fields() -> set[str]:
    """The fields of a line of metrics.jsonl that change when nothing but the clock's readings
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
    from repro.io.files import as_json, write

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--seed", type=int, default=1811_06965)
    options = parser.parse_args()
    aims = [AIMS[n % len(AIMS)] for n in range(options.kills)]
    with tempfile.TemporaryDirectory() as folder:
        counts = campaign(Path(folder), aims, options.seed, options.minutes)
    path = REFERENCE / machine.detect("smoke").slug / "campaign.json"
    write(path, as_json(counts.record()))
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
