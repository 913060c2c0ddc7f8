"""Kill `repro run` and its workers at random moments, go on until done, compare with a whole sweep.

As a script it is `repro run` that notes what it is doing, and when: `campaign.py NOTE run ...`.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).parent
PHASES = ("planning", "starting workers", "measuring", "recording")
Aim = tuple[str, ...]  # the phases that a kill may fall into
AIMS: tuple[Aim, ...] = (PHASES, *((phase,) for phase in PHASES))
# its name, its beginning and its end on the clock of time.monotonic
Phase = tuple[str, float, float]


@dataclass
class Counts:
    """What a campaign did."""

    seed: int
    kills: Counter[str] = field(default_factory=Counter)
    sweeps: int = 0
    runs: int = 0
    most_processes: int = 0

    def __str__(self) -> str:
        phases = ", ".join(f"{self.kills[phase]} while {phase}" for phase in PHASES)
        return (
            f"seed {self.seed}: {self.kills.total()} kills ({phases}; up to {self.most_processes} "
            f"processes) of {self.sweeps} sweeps, in which {self.runs} runs were each recorded "
            "once in every round"
        )


class Start:
    """One start of `repro run` into a results folder, in a session of its own."""

    def __init__(self, results: Path) -> None:
        self._note = results.with_suffix(".phases")
        self._note.write_text(f"planning {time.monotonic()}\n")
        command = [
            sys.executable,
            __file__,
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


def campaign(folder: Path, aims: Sequence[Aim], seed: int) -> Counts:
    """A kill for each aim, in as many sweeps as it takes; AssertionError where one ends unlike an
    undisturbed one."""
    print(f"seed {seed}", flush=True)
    rng, counts, left = random.Random(seed), Counts(seed), list(aims)
    whole = folder / "whole"
    usual = Start(whole).wait()
    while left:
        results = folder / f"sweep{counts.sweeps}"
        start = Start(results)
        while left and killed(start, usual, left[0], counts, rng):
            left.pop(0)
            start = Start(results)
        start.wait()
        counts.sweeps += 1
        counts.runs += assert_same(results, whole)
        shutil.rmtree(results)
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


def assert_same(results: Path, whole: Path) -> int:
    """Hold a finished sweep against an undisturbed one; returns how many runs it has."""
    from tiny_sweep import experiment

    from repro.harness.results import load

    mine, theirs = load(results), load(whole)
    assert files_of(results) == files_of(whole)
    assert mine.rows["rounds"].tolist() == [experiment().rounds] * len(theirs.rows)
    for run in mine.rows["run"]:
        (path,) = results.glob(f"*/*/*/{run}/metrics.jsonl")
        assert len(path.read_text().splitlines()) == experiment().rounds, "a line without a marker"
    for path in (
        path
        for name in ("spec", "env", "status", "experiment")
        for path in whole.rglob(f"{name}.json")
    ):
        assert (results / path.relative_to(whole)).read_bytes() == path.read_bytes()
    for run, other in zip(mine.runs, theirs.runs, strict=True):
        assert spans(mine.timeline(run)) == spans(theirs.timeline(other))
    assert shown_without_clocks(results) == shown_without_clocks(whole)
    return len(mine.rows)


def files_of(results: Path) -> list[str]:
    """Everything that lies there; a temporary or a worker's log would show."""
    return sorted(str(path.relative_to(results)) for path in results.rglob("*"))


def spans(timeline: Any) -> list[tuple[str, int, int, int]]:
    return sorted((span.kind, span.stage, span.micro_batch, span.step) for span in timeline.spans)


def shown_without_clocks(results: Path) -> list[str]:
    """Every table of the report, with each number that was read off a clock replaced by one and the
    same."""
    from repro.harness.results import load
    from repro.harness.spec import digest
    from repro.report.tables import all_tables

    still = results.with_name("still")
    shutil.copytree(results, still)
    for folder in load(still).folders:
        markers = folder.markers()
        about = folder.about()
        assert about is not None
        for run in about.runs:
            records = folder.records(run, markers)
            lines = [stopped(record.model_dump(mode="json")) for record in records]
            (folder.path / run / "metrics.jsonl").write_text(
                "".join(json.dumps(line) + "\n" for line in lines)
            )
            for line in lines:
                markers[line["round"]].runs[run] = digest(line)
        for name, marker in markers.items():
            (folder.path / "rounds" / f"{name}.json").write_text(marker.model_dump_json())
    found = load(still)
    shutil.rmtree(still)
    assert found.rounds["step_s"].tolist() == [0.5] * len(found.rounds)
    return [str(found.rows.to_json()), *(table.markdown() for table in all_tables(found))]


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


def main(note: Path, arguments: list[str]) -> int:
    """`repro ARGUMENTS`, and in the file `note` a line for each phase that begins."""
    from repro.cli import main
    from repro.harness import machine
    from repro.harness.record import Folder
    from repro.harness.workers import Workers

    # timed layers wait, so two stages run side by side on one core as well
    machine.cores = lambda: 2
    with note.open("a", buffering=1) as file:

        def say(phase: str) -> None:
            file.write(f"{phase} {time.monotonic()}\n")

        noted(Workers, "ready", say, "starting workers", "measuring")
        noted(Folder, "commit_round", say, "recording", "measuring")
        return main.main(arguments)


def noted(owner: type, name: str, say: Callable[[str], None], phase: str, then: str) -> None:
    """Have a method say that its phase begins, and that the next one does when it ends."""
    method = getattr(owner, name)

    @wraps(method)
    def wrapped(*arguments: Any) -> Any:
        say(phase)
        found = method(*arguments)
        say(then)
        return found

    setattr(owner, name, wrapped)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
