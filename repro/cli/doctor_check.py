"""`repro doctor --check`: half a minute of small pipelines on this machine's own devices.

Each check is one run or a few, measured by the harness's own workers. A run that hangs reaches its
deadline, and the next check gets fresh workers.
"""

import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional

from repro.gpipe import make_schedule
from repro.harness import machine
from repro.harness.crew import Crew
from repro.harness.job import Job, Measured, Measurer, Outcome
from repro.harness.schema import CheckRound, TrainRound
from repro.harness.spec import RunSpec
from repro.io.temporary import own_folder
from repro.models import Model

_START = 60.0  # seconds of the first run; a cold disk takes long to read torch
_DEADLINES = {
    "cpu": 20.0,  # seconds of one run
    "cuda": 60.0,  # eight GPUs make 14 communicators, one after the other
}
_MOST_STAGES = 8
_REPORTED_WITHIN = 5.0  # seconds from a stage's failure to its report
_LOSS_TOLERANCE = 1e-5  # on GPUs, whose kernels may add in another order; losses are about 1
_RATE_BYTES = 8 * 2**20  # of the message whose rate is measured
_HINTS = {
    "cpu": "try GLOO_SOCKET_IFNAME=lo, and fewer other programs",
    "cuda": "try NCCL_P2P_DISABLE=1 or NCCL_DEBUG=WARN, or CUDA_VISIBLE_DEVICES= for the CPU",
}


class Broken(Exception):
    """Something does not work; the message says what, and what to try."""


@dataclass(frozen=True)
class Bench:
    """Workers for the checks: K stages on "cpu" or "cuda"."""

    crew: Measurer
    K: int
    device: str
    deadline: float

    def outcome(self, model: str, model_args: dict[str, Any], **fields: Any) -> Outcome:
        """Train one step of K stages, one layer each, unless the fields of RunSpec say otherwise.

        Args:
            model: a name, or a function of this module.
            model_args: its arguments.
            fields: of the RunSpec.
        """
        if model in globals():
            model = f"import:{__name__}:{model}"
        usual: dict[str, Any] = {"K": self.K, "M": 4, "N": 32, "warmup": 0, "steps": 1}
        usual |= {"balance": "uniform"}
        spec = RunSpec(model=model, model_args=model_args, **(usual | fields))
        return self.crew.measure(Job(spec, device=self.device), self.deadline)

    def measure(self, model: str, model_args: dict[str, Any], **fields: Any) -> Measured:
        """The same for a run that must work; raises Broken if it does not."""
        outcome = self.outcome(model, model_args, **fields)
        if outcome.measured is None:
            raise Broken(f"{outcome.reason} ({_HINTS[self.device]})")
        return outcome.measured

    def train(self, model: str, model_args: dict[str, Any], **fields: Any) -> TrainRound:
        record = self.measure(model, model_args, **fields).record
        assert isinstance(record, TrainRound)
        return record


def blocks(L: int) -> Model:
    """Layers with random numbers and running statistics."""
    return Model("blocks", [_block] * L, _noise, functional.mse_loss, "examples/s")


def fails(L: int) -> Model:
    """The last layer raises at its second micro-batch."""
    layers = [*[partial(nn.Linear, 16, 16)] * (L - 1), _Failing]
    return Model("fails", layers, _noise, functional.mse_loss, "examples/s")


def _block() -> nn.Module:
    # No bias: before a batch norm its gradient is rounding alone.
    return nn.Sequential(
        nn.Linear(16, 16, bias=False), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Tanh()
    )


class _Failing(nn.Linear):
    def __init__(self) -> None:
        super().__init__(16, 16)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls > 1:
            raise RuntimeError(f"injected failure at {time.time():.3f}")
        return super().forward(x)


def _noise(N: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(N, 16, generator=generator), torch.randn(N, 16, generator=generator)


def start(bench: Bench) -> str:
    bench.crew.ready()
    patient = Bench(bench.crew, bench.K, bench.device, max(_START, bench.deadline))
    patient.measure("timed", {"L": bench.K})
    return f"{bench.K} stage processes"


def unsplit(bench: Bench) -> str:
    """K stages train and evaluate as the unsplit model does, up to the order of sums."""
    record = bench.measure("blocks", {"L": bench.K}, task="check").record
    assert isinstance(record, CheckRound)
    for name, check in record.checks.items():
        if check.verdict != "ok":
            raise Broken(f"{name}: {check.evidence} (try another build of torch)")
    return ", ".join(record.checks)


def same_losses(bench: Bench) -> str:
    """K stages give the losses of one stage: to the bit on the CPU, nearly on GPUs."""
    split = bench.train("blocks", {"L": bench.K}, steps=3).loss
    alone = bench.train("blocks", {"L": bench.K}, steps=3, K=1).loss
    difference = max(abs((a or 0.0) - (b or 0.0)) for a, b in zip(split, alone, strict=True))
    allowed = 0.0 if bench.device == "cpu" else _LOSS_TOLERANCE
    text = f"losses of 3 steps differ by {difference:.0e}, K={bench.K} against K=1"
    if not difference <= allowed:
        raise Broken(f"{text}; allowed is {allowed:g} (try another build of torch)")
    return text


def messages(bench: Bench) -> str:
    waits = {"L": bench.K, "forward_s": 0.0, "backward_s": 0.0, "elements": _RATE_BYTES // 4}
    timeline = bench.measure("timed", waits, M=1, N=1, steps=4).timeline
    assert timeline is not None
    gaps = []  # from one stage's end of F (or B) to the next one's start
    for kind in "FB":
        spans = sorted((s for s in timeline.spans if s.kind == kind), key=lambda s: s.start)
        gaps += [after.start - before.end for before, after in pairwise(spans)]
    return f"8 MiB at about {_RATE_BYTES / max(min(gaps), 1e-9) / 2**30:.1f} GiB/s"


def memory(bench: Bench) -> str:
    peaks = bench.train("blocks", {"L": bench.K}).peak_bytes or [0]
    if min(peaks) <= 0:
        raise Broken(f"the meter shows {peaks} bytes (try another build of torch)")
    return f"peak of each stage in KiB: {', '.join(f'{peak / 1024:.0f}' for peak in peaks)}"


def overhead(bench: Bench) -> str:
    M = 32
    actions = len(make_schedule("gpipe", 1, M).work(0))
    idle_layer = {"L": 1, "forward_s": 0.0, "backward_s": 0.0, "elements": 1}
    microseconds = {}
    for trace in (False, True):
        record = bench.train("timed", idle_layer, trace=trace, K=1, M=M, N=M, warmup=1, steps=30)
        microseconds[trace] = 1e6 * min(record.step_s) / actions
    return (
        f"{microseconds[False]:.0f} microseconds an action, {microseconds[True]:.0f} traced (K=1, "
        "layers that do nothing)"
    )


def failure(bench: Bench) -> str:
    """A stage that fails is reported within seconds, with its name and its error."""
    outcome = bench.outcome("fails", {"L": bench.K})
    reported = time.time()
    injected = re.search(r"injected failure at ([\d.]+)", outcome.reason)
    if injected is None or f"stage {bench.K - 1}" not in outcome.reason:
        found = outcome.reason or outcome.status
        raise Broken(f"reported was only: {found} ({_HINTS[bench.device]})")
    seconds = reported - float(injected[1])
    text = f"reported after {seconds:.1f} s"
    if seconds > _REPORTED_WITHIN:
        raise Broken(f"{text}, allowed are {_REPORTED_WITHIN:g} s (end other programs)")
    return f"{text} with the stage's name and its error"


CHECKS: dict[str, Callable[[Bench], str]] = {
    "start": start,
    "training as the unsplit model": unsplit,
    "training as one stage": same_losses,
    "messages": messages,
    "memory meter": memory,
    "engine overhead": overhead,
    "a stage that fails": failure,
}


def run_all(K: int, device: str, deadline: float | None = None) -> Iterator[tuple[bool, str]]:
    """Whether each check went well, and a line about it; without a start there are no others."""
    with own_folder() as folder, Crew(K, folder / "logs") as crew:
        bench = Bench(crew, K, device, deadline or _DEADLINES[device])
        for name, check in CHECKS.items():
            began = time.perf_counter()
            try:
                good, text = True, f"ok: {check(bench)}"
            except Broken as error:
                good, text = False, f"FAILED: {error}"
            yield good, f"{name}: {text} [{time.perf_counter() - began:.1f} s]"
            if not good and check is start:
                return


def print_checks() -> int:
    """Print the result of each check; returns the exit status, 1 when something does not work."""
    if machine.torchrun_rank() is not None:
        raise ValueError(
            f"--check with RANK={os.environ['RANK']}: the checks start processes of their own; run "
            "it without torchrun"
        )
    console = Console(highlight=False, markup=False)
    gpus = machine.gpus()
    count = len(gpus) or machine.cores()
    K = min(max(count, 2), _MOST_STAGES)
    kind = gpus[0] if gpus else f"CPU core{'s' if count > 1 else ''}"
    shared = ", which they share" if count < K else ""
    console.print(f"\nchecking {K} stages on {min(count, K)} x {kind}{shared}", style="bold")
    works = True
    for good, line in run_all(K, "cuda" if gpus else "cpu"):
        console.print(line, style="green" if good else "bold red", soft_wrap=True)
        works = works and good
    return 0 if works else 1
