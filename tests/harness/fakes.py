"""Workers without processes: fixed step times, failures on demand. And a small experiment."""

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pytest
from rich.console import Console

from repro.cli.run import LOG, RunOptions, Session
from repro.gpipe.schedule.replay import replay
from repro.harness import plan, runner
from repro.harness.machine import Machine
from repro.harness.progress import ProgressReporter
from repro.harness.request import Request, Result, Status
from repro.harness.schema import RoundRecord, round_record
from repro.harness.spec import Experiment, Group, RunSpec

MACHINE = Machine("cpu", "Test CPU", 2, "gloo", "2.15.0")
SPEC_SIZES = {"L": 2, "d": 32, "H": 64, "heads": 2, "V": 128, "T": 16}


def spec(K: int = 1, M: int = 1, **changed: Any) -> RunSpec:
    return RunSpec(
        **{"model": "transformer", "model_args": SPEC_SIZES, "K": K, "M": M, "N": 8, **changed}
    )


def experiment(*runs: RunSpec, rounds: int = 2, version: int = 1) -> Experiment:
    chosen = runs or tuple(spec(K, M) for K in (1, 2, 4) for M in (1, 4))
    groups = (Group(name="timed", runs=chosen),)
    return Experiment(
        name="tiny",
        title="A tiny sweep",
        question="?",
        rounds=rounds,
        version=version,
        groups=groups,
    )


def metrics(seconds: float, K: int, **changed: Any) -> RoundRecord:
    values = {
        "task": "train",
        "step_s": [seconds, seconds, 2 * seconds],
        "loss": [1.0],
        "bubble_idle_over_total": [0.25],
        "breakdown": {"computation": 1.0},
        "peak_bytes": [2**30] * K,
        "balance": [4 // K] * K,
        "setup_s": 0.1,
        "unit": "examples/s",
        "labels": {},
    }
    return round_record(values | changed)


@dataclass
class FakeWorkers:
    """Take (K + 1/M) seconds for a step; what they were asked is in `requests`.

    fail: run (K, M) -> its status; stop_after: how many requests until Ctrl-C.
    """

    fail: dict[tuple[int, int], Status] = field(default_factory=dict)
    stop_after: int | None = None
    requests: list[Request] = field(default_factory=list)
    logs = Path("logs/x")

    def __enter__(self) -> "FakeWorkers":
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def measure(self, request: Request, deadline: float) -> Result | Status:
        if self.stop_after is not None and len(self.requests) >= self.stop_after:
            raise KeyboardInterrupt
        self.requests.append(request)
        K, M = request.spec.K, request.spec.M
        if (K, M) in self.fail:
            return self.fail[K, M]
        timeline = replay(request.spec.make_schedule(), lambda _kind, _stage: 1.0)
        return Result(metrics(1 / K + 1 / M, K), timeline)

    def measure_all(
        self, requests: tuple[Request, ...], deadline: float, *, fresh: bool = False
    ) -> dict[int, Result | Status]:
        found: dict[int, Result | Status] = {}
        for number, request in enumerate(requests):
            found[number] = self.measure(request, deadline)
            if isinstance(found[number], Status):
                return {number: found[number]}
        return found

    @property
    def asked(self) -> list[tuple[int, int]]:
        return [(request.spec.K, request.spec.M) for request in self.requests]


def measure(
    results: Path,
    workers: FakeWorkers,
    of: Experiment | None = None,
    only: tuple[str, ...] = (),
    *,
    machine: Machine = MACHINE,
    out: IO[str] | None = None,
    session: dict[str, Any] | None = None,
    **options: Any,
) -> int:
    """What `repro run` does, with these workers; returns the exit status."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "workers_for", lambda *_: workers)
        console = Console(file=out or io.StringIO(), width=200)
        reporter = ProgressReporter(results / LOG, console)
        asked: dict[str, Any] = {"wandb": "disabled"} | (session or {})
        chosen = RunOptions(results=results, **asked)
        return Session(chosen, reporter).run(
            lambda: [plan.make(of or experiment(), "smoke", machine, results, only, **options)]
        )
