"""`repro doctor --check`: half a minute of small pipelines on this machine's own devices.

Each check is a run or two, measured by the harness's own workers. A run that hangs reaches its
deadline, and the next check gets fresh workers.
"""

import re
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from repro.harness import machine
from repro.harness.crew import Crew
from repro.harness.job import Job, Outcome
from repro.harness.spec import RunSpec
from repro.io.temporary import own_folder
from repro.models import Model

_DEADLINE = 120.0  # seconds of a run; the first one reads torch
_MOST_STAGES = 8
_REPORTED_WITHIN = 5.0  # seconds from a stage's failure to its report
_LOSS_TOLERANCE = 1e-5  # on GPUs, whose kernels may add in another order; losses are about 1
_RATE_BYTES = 8 * 2**20  # of the message whose rate is measured
_HINTS = {
    "cpu": "try fewer other programs, GLOO_SOCKET_IFNAME=lo, or another build of torch",
    "cuda": "try NCCL_P2P_DISABLE=1 or NCCL_DEBUG=WARN, another build of torch, or "
    "CUDA_VISIBLE_DEVICES= for the CPU",
}


def blocks(L: int, fails: bool = False) -> Model:
    """Layers with random numbers and running statistics; the last one may raise an error."""
    layers = [_block] * (L - fails) + [_Failing] * fails
    return Model("blocks", layers, _noise, functional.mse_loss, "examples/s")


def _block() -> nn.Module:
    # No bias: before a batch norm its gradient is rounding alone.
    linear = nn.Linear(16, 16, bias=False)
    return nn.Sequential(linear, nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Tanh())


class _Failing(nn.Identity):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError(f"injected failure at {time.time():.3f}")


def _noise(N: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(N, 16, generator=generator), torch.randn(N, 16, generator=generator)


def unsplit(_device: str, outcome: Outcome) -> str:
    """K stages train and evaluate as the unsplit model does, up to the order of sums."""
    found = _measured(outcome).record.checks
    for name, check in found.items():
        if check.verdict != "ok":
            raise ValueError(f"{name}: {check.evidence}")
    return ", ".join(found)


def one_stage(device: str, *outcomes: Outcome) -> str:
    """K stages give the losses of one stage: to the bit on the CPU, nearly on GPUs."""
    split, alone = (_measured(outcome).record for outcome in outcomes)
    pairs = zip(split.loss, alone.loss, strict=True)
    difference = max(abs((a or 0.0) - (b or 0.0)) for a, b in pairs)
    allowed = 0.0 if device == "cpu" else _LOSS_TOLERANCE
    text = f"losses of 3 steps differ by {difference:.0e}"
    if not difference <= allowed:
        raise ValueError(f"{text}; allowed is {allowed:g}")
    peaks = [round(peak / 1024) for peak in split.peak_bytes or [0]]
    if min(peaks) <= 0:
        raise ValueError(f"the meter of memory shows {peaks} KiB")
    return f"{text}; peak memory {', '.join(map(str, peaks))} KiB"


def messages(_device: str, outcome: Outcome) -> str:
    gaps = []  # from one stage's end of F (or B) to the next one's start
    for kind in "FB":
        spans = [span for span in _measured(outcome).timeline.spans if span.kind == kind]
        ordered = sorted(spans, key=lambda span: span.start)
        gaps += [after.start - before.end for before, after in pairwise(ordered)]
    return f"8 MiB at about {_RATE_BYTES / max(min(gaps), 1e-9) / 2**30:.1f} GiB/s"


def failure(_device: str, outcome: Outcome) -> str:
    """A stage that fails is reported within seconds, with its name and its error."""
    reported = time.time()
    injected = re.search(r"stage [1-9].*injected failure at ([\d.]+)", outcome.reason)
    if injected is None:
        found = outcome.reason or outcome.status
        raise ValueError(f"reported was only: {found}")
    text = f"reported after {reported - float(injected[1]):.1f} s with the stage's name"
    if reported - float(injected[1]) > _REPORTED_WITHIN:
        raise ValueError(f"{text}, allowed are {_REPORTED_WITHIN:g} s")
    return text


def _measured(outcome: Outcome) -> Any:
    if outcome.measured is None:
        raise ValueError(outcome.reason)
    return outcome.measured


def checks(K: int) -> dict[str, tuple[Callable[..., str], list[RunSpec]]]:
    """Name -> what judges the outcomes of some runs, which has a ValueError for what is wrong."""
    usual = {"model": f"import:{__name__}:blocks", "model_args": {"L": K}, "K": K, "M": 4, "N": 32}
    usual |= {"warmup": 0, "steps": 1, "balance": "uniform"}

    def run(**fields: Any) -> RunSpec:
        return RunSpec(**(usual | fields))

    waits = {"L": K, "forward_s": 0.0, "backward_s": 0.0, "elements": _RATE_BYTES // 4}
    return {
        "training as the unsplit model": (unsplit, [run(task="check")]),
        "training as one stage": (one_stage, [run(steps=3), run(steps=3, K=1)]),
        "messages": (messages, [run(model="timed", model_args=waits, M=1, N=1, steps=4)]),
        "a stage that fails": (failure, [run(model_args={"L": K, "fails": True})]),
    }


def run_all(K: int, device: str) -> Iterator[tuple[bool, str]]:
    with own_folder() as folder, Crew(K, folder / "logs") as crew:
        crew.ready()
        for name, (judge, runs) in checks(K).items():
            began = time.perf_counter()
            outcomes = [crew.measure(Job(run, device=device), _DEADLINE) for run in runs]
            try:
                good, text = True, f"ok: {judge(device, *outcomes)}"
            except ValueError as error:
                good, text = False, f"FAILED: {error} ({_HINTS[device]})"
            yield good, f"{name}: {text} [{time.perf_counter() - began:.1f} s]"


def print_checks() -> int:
    if machine.torchrun_rank() is not None:
        raise ValueError("--check: it starts processes of its own; run it without torchrun")
    gpus = machine.gpus()
    count = len(gpus) or machine.cores()
    K = min(max(count, 2), _MOST_STAGES)
    kind = gpus[0] if gpus else "CPU core"
    shared = ", which they share" if count < K else ""
    print(f"\nchecking {K} stages on {min(count, K)} x {kind}{shared}", flush=True)
    status = 0
    for good, line in run_all(K, "cuda" if gpus else "cpu"):
        print(line, flush=True)
        status = status if good else 1
    return status
