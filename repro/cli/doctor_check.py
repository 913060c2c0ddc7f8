"""`repro doctor --check`: half a minute of small pipelines on this machine's own devices.

Each check is one run or a few, measured by the harness's own worker processes. A run that hangs
reaches its deadline, and the next check gets fresh processes.
"""

import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch.distributed as dist
from rich.console import Console

from repro.cli import doctor_models
from repro.cli.doctor_models import M
from repro.gpipe import Timeline, make_schedule
from repro.harness import machine
from repro.harness.crew import Crew
from repro.harness.job import Job, Measured, Measurer, Outcome
from repro.harness.schema import CheckRound, TrainRound
from repro.harness.spec import RunSpec
from repro.io.temporary import own_folder

DEADLINE = 20.0  # seconds of one run
_FIRST_DEADLINE = 60.0  # seconds of the first run; a cold disk takes long to read torch
_GPU_DEADLINE = 60.0  # seconds of one run on GPUs; eight make 14 communicators, one after the other
_MOST_STAGES = 8
_REPORTED_WITHIN = 5.0  # seconds from a stage's failure to its report
_LOSS_TOLERANCE = 1e-5  # on GPUs; losses of the model `blocks` are about 1
_RATE_BYTES = 8 * 2**20  # of the message whose rate is measured
_HINTS = {
    "cpu": "try GLOO_SOCKET_IFNAME=lo, and fewer other programs",
    "cuda": "try NCCL_P2P_DISABLE=1 or NCCL_DEBUG=WARN, or CUDA_VISIBLE_DEVICES= for the CPU",
}


@dataclass(frozen=True)
class Place:
    """Where the checks run: K stages on "cpu" or "cuda", and the same as a text for the user."""

    K: int
    device: str
    text: str


@dataclass(frozen=True)
class Result:
    """What became of a check.

    Attributes:
        name: of the check.
        status: "ok", "failed" or "skipped".
        text: what was found, or why it failed or was skipped.
        seconds: how long it took.
    """

    name: str
    status: str
    text: str
    seconds: float = 0.0

    def __str__(self) -> str:
        labels = {
            "ok": f"ok: {self.text}",
            "failed": f"FAILED: {self.text}",
            "skipped": f"skipped({self.text})",
        }
        return f"{self.name}: {labels[self.status]} [{self.seconds:.1f} s]"


class Broken(Exception):
    """Something does not work; the message says what, and what to try."""


@dataclass(frozen=True)
class Bench:
    """Worker processes for the checks, where they compute, and how long each run may take."""

    crew: Measurer
    place: Place
    deadline: float = DEADLINE

    def outcome(
        self, model: str, model_args: dict[str, Any] | None = None, **fields: Any
    ) -> Outcome:
        """Train one step of K stages, one layer each, unless the fields of RunSpec say otherwise.

        Args:
            model: a name, or a function of `repro.cli.doctor_models`.
            model_args: its arguments; by default K.
            fields: of the RunSpec.
        """
        if hasattr(doctor_models, model):
            model = f"import:{doctor_models.__name__}:{model}"
        defaults: dict[str, Any] = {"K": self.place.K, "M": M, "N": M, "warmup": 0, "steps": 1}
        spec = RunSpec(
            model=model,
            model_args={"K": self.place.K} if model_args is None else model_args,
            balance="uniform",
            **(defaults | fields),
        )
        return self.crew.measure(Job(spec, device=self.place.device), self.deadline)

    def measure(
        self, model: str, model_args: dict[str, Any] | None = None, **fields: Any
    ) -> Measured:
        """The same for a run that must work; raises Broken if it does not."""
        outcome = self.outcome(model, model_args, **fields)
        if outcome.measured is None:
            raise Broken(f"{outcome.reason} ({_HINTS[self.place.device]})")
        return outcome.measured

    def train(
        self, model: str, model_args: dict[str, Any] | None = None, **fields: Any
    ) -> TrainRound:
        record = self.measure(model, model_args, **fields).record
        assert isinstance(record, TrainRound)
        return record


def place() -> Place:
    """A stage for each usable GPU, or else for each CPU core; 2 to 8 stages."""
    gpus = machine.gpus()
    count = len(gpus) or machine.cores()
    K = min(max(count, 2), _MOST_STAGES)
    kind = gpus[0] if gpus else f"CPU core{'s' if count > 1 else ''}"
    shared = ", which they share" if count < K else ""
    text = f"{K} stages on {min(count, K)} x {kind}{shared}"
    return Place(K, "cuda" if gpus else "cpu", text)


def start(bench: Bench) -> str:
    bench.crew.ready()
    patient = replace(bench, deadline=max(_FIRST_DEADLINE, bench.deadline))
    patient.measure("timed", {"L": bench.place.K})
    return f"{bench.place.K} stage processes"


def tensors(bench: Bench) -> str:
    """Every kind of tensor crosses every boundary unchanged, and so does its gradient."""
    # The first step learns the shapes of messages, the others know them.
    bench.measure("patterns", steps=3)
    waits = {"L": bench.place.K, "forward_s": 0.0, "backward_s": 0.0, "elements": _RATE_BYTES // 4}
    timeline = bench.measure("timed", waits, M=1, N=1, steps=4).timeline
    assert timeline is not None
    rate = _RATE_BYTES / max(_shortest_message(timeline), 1e-9) / 2**30
    return (
        f"{doctor_models.KINDS} kinds and their gradients arrive bit-equal; 8 MiB at about "
        f"{rate:.1f} GiB/s"
    )


def unsplit(bench: Bench) -> str:
    """K stages train and evaluate as the unsplit model does, up to the order of sums."""
    record = bench.measure("blocks", N=32, task="check").record
    assert isinstance(record, CheckRound)
    for name, check in record.checks.items():
        if check.verdict != "ok":
            raise Broken(f"{name}: {check.evidence} (try another build of torch)")
    return ", ".join(record.checks)


def same_losses(bench: Bench) -> str:
    """K stages give the losses of one stage: to the bit on the CPU, nearly on GPUs."""
    split = bench.train("blocks", N=32, steps=3).loss
    alone = bench.train("blocks", N=32, steps=3, K=1).loss
    if split == alone:
        return f"losses of 3 steps are bit-equal, K={bench.place.K} against K=1"
    difference = max(abs((a or 0.0) - (b or 0.0)) for a, b in zip(split, alone, strict=True))
    # Kernels of a GPU may add in another order.
    allowed = 0.0 if bench.place.device == "cpu" else _LOSS_TOLERANCE
    if not difference <= allowed:
        raise Broken(
            f"losses differ by {difference:.0e}, K={bench.place.K} against K=1; allowed is "
            f"{allowed:g} (try another build of torch)"
        )
    return f"losses of 3 steps differ by {difference:.0e}, K={bench.place.K} against K=1"


def memory(bench: Bench) -> str:
    peaks = bench.train("blocks", N=32).peak_bytes or [0]
    if min(peaks) <= 0:
        raise Broken(f"the meter shows {peaks} bytes (try another build of torch)")
    return f"peak of each stage in KiB: {', '.join(f'{peak / 1024:.0f}' for peak in peaks)}"


def overhead(bench: Bench) -> str:
    micro_batches = 32
    actions = len(make_schedule("gpipe", 1, micro_batches).work(0))
    idle_layer = {"L": 1, "forward_s": 0.0, "backward_s": 0.0, "elements": 1}
    microseconds = {}
    for trace in (False, True):
        run = {"K": 1, "M": micro_batches, "N": micro_batches, "warmup": 1, "steps": 30}
        record = bench.train("timed", idle_layer, trace=trace, **run)
        microseconds[trace] = 1e6 * min(record.step_s) / actions
    return (
        f"{microseconds[False]:.0f} microseconds an action, {microseconds[True]:.0f} traced (K=1, "
        "layers that do nothing)"
    )


def failure(bench: Bench) -> str:
    """A stage that fails is reported within seconds, with its name and its error."""
    hint = _HINTS[bench.place.device]
    outcome = bench.outcome("fails")
    reported = time.time()
    injected = re.search(r"injected failure at ([\d.]+)", outcome.reason)
    if injected is None or f"stage {bench.place.K - 1}" not in outcome.reason:
        raise Broken(f"reported was only: {outcome.reason or outcome.status} ({hint})")
    seconds = reported - float(injected[1])
    if seconds > _REPORTED_WITHIN:
        raise Broken(
            f"reported after {seconds:.1f} s, allowed are {_REPORTED_WITHIN:g} s (end other "
            "programs)"
        )
    return f"reported after {seconds:.1f} s with the stage's name and its error"


CHECKS: dict[str, Callable[[Bench], str]] = {
    "start": start,
    "tensors between neighbours": tensors,
    "training as the unsplit model": unsplit,
    "training as one stage": same_losses,
    "memory meter": memory,
    "engine overhead": overhead,
    "a stage that fails": failure,
}


def run_all(where: Place, deadline: float | None = None) -> Iterator[Result]:
    """The result of each check as it ends; the rest is skipped when processes do not start."""
    if deadline is None:
        deadline = DEADLINE if where.device == "cpu" else _GPU_DEADLINE
    skipped = ""
    if not (dist.is_available() and dist.is_gloo_available()):
        skipped = "this torch has no gloo to carry messages"
    with (
        own_folder() as folder,
        Crew(where.K, folder / "logs") as crew,
    ):
        bench = Bench(crew, where, deadline)
        for name, check in CHECKS.items():
            if skipped:
                yield Result(name, "skipped", skipped)
                continue
            began = time.perf_counter()
            try:
                status, text = "ok", check(bench)
            except Broken as error:
                status, text = "failed", str(error)
                if check is start:
                    skipped = "its stage processes did not start"
            yield Result(name, status, text, time.perf_counter() - began)


def print_checks() -> int:
    """Print the result of each check; returns the exit status, 1 when something does not work.

    Raises:
        ValueError: under torchrun, since the checks start processes of their own.
    """
    if machine.torchrun_rank() is not None:
        raise ValueError(
            f"--check with RANK={os.environ['RANK']}: the checks start processes of their own; run "
            "it without torchrun"
        )
    console = Console(highlight=False, markup=False)
    where = place()
    console.print(f"\nchecking {where.text}", style="bold")
    styles = {"ok": "green", "failed": "bold red"}
    works = True
    for result in run_all(where):
        console.print(str(result), style=styles.get(result.status), soft_wrap=True)
        works = works and result.status != "failed"
    return 0 if works else 1


def _shortest_message(timeline: Timeline) -> float:
    """Seconds of the fastest message, from one stage's end of F (or B) to the next one's start."""
    gaps = []
    for kind in "FB":
        spans = sorted((s for s in timeline.spans if s.kind == kind), key=lambda s: s.start)
        gaps += [after.start - before.end for before, after in pairwise(spans)]
    return min(gaps)
