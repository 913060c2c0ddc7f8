"""`repro doctor --check`: half a minute of small pipelines on this machine's own devices; says what works.

The stage processes are those of `launch`. They are started twice, since starting costs most: once
for all that should work and once for the failure. Each check has a deadline: a hang is a result,
its processes are ended, and fresh ones go on with the next check.
"""

import logging
import multiprocessing
import os
import pickle
import queue
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import Any

import torch
import torch.distributed as dist

from repro.cli import doctor_probes
from repro.gpipe.runtime.launch import launch
from repro.harness import machine

DEADLINE = 20.0  # seconds of one check
STARTED_WITHIN = 60.0  # seconds; a cold disk takes long to read torch
MOST = 8  # stages
_TOLD_WITHIN = 5.0  # seconds from a stage's failure to its report
_RELATIVE = 1e-5  # of gradients on GPUs, whose sums may be taken in another order
_GIB = 2**30
_END = "end"  # of all stage processes
_TRY = {
    "cpu": "try GLOO_SOCKET_IFNAME=lo, and fewer other programs",
    "cuda": "try NCCL_P2P_DISABLE=1 or NCCL_DEBUG=WARN, or CUDA_VISIBLE_DEVICES= for the CPU",
}


@dataclass(frozen=True)
class Place:
    """Where the checks run: K stages on "cpu" or "cuda", in words for a person."""

    stages: int
    device: str
    words: str


@dataclass(frozen=True)
class Check:
    """What became of a check: "ok", "failed" or "skipped", what it found or why, and how many seconds it took."""

    name: str
    status: str
    said: str
    seconds: float

    def __str__(self) -> str:
        label = {"ok": f"ok: {self.said}", "failed": f"FAILED: {self.said}"}.get(
            self.status, f"skipped({self.said})"
        )
        return f"{self.name}: {label} [{self.seconds:.1f} s]"


class Broken(Exception):
    """A check found that something does not work; the message says what, and what to try."""


def place() -> Place:
    """As many stages as devices can compute at once, 2 to 8: GPUs where torch can use them, else CPU cores."""
    gpus = machine.gpus()
    count = len(gpus) or machine.cores()
    stages = min(max(count, 2), MOST)
    kind = gpus[0] if gpus else f"CPU core{'s' * (count > 1)}"
    shared = ", which they share" if count < stages else ""
    return Place(
        stages,
        "cuda" if gpus else "cpu",
        f"{stages} stages on {min(count, stages)} x {kind}{shared}",
    )


class Stages:
    """Stage processes whose `launch` runs in a thread of this one, so that a hang can be ended.

    Args:
        where: how many, and where.
        fn: of `probes`: (queue, stages, ...) -> None; it puts (name, stage, pickled result) into
            the queue.
        args: further arguments.
    """

    def __init__(self, where: Place, fn: Callable[..., None], *args: Any) -> None:
        self._where = where
        self._before = set(multiprocessing.active_children())
        self._queue = multiprocessing.get_context("spawn").Queue()
        self._queue.cancel_join_thread()  # one that was ended may hold its lock for ever
        self._found: dict[str, dict[int, Any]] = defaultdict(dict)
        self._thread = threading.Thread(
            target=self._launch, args=(fn, args), name="checked stages", daemon=True
        )
        self._thread.start()

    def started(self) -> str:
        """Wait until every process runs and they know each other."""
        self.answers(doctor_probes.READY, STARTED_WITHIN)
        return f"{self._where.stages} stage processes"

    def answers(self, name: str, deadline: float) -> list[Any]:
        """What each stage found, in their order; raises Broken where a stage failed or did not answer in time."""
        end = time.monotonic() + deadline
        while len(self._found[name]) < self._where.stages:
            try:
                kind, stage, data = self._queue.get(timeout=max(0.001, end - time.monotonic()))
            except queue.Empty:
                raise Broken(
                    f"no answer within {deadline:g} s ({_TRY[self._where.device]})"
                ) from None
            if kind == _END:
                raise Broken(f"{_first_and_last(data)} ({_TRY[self._where.device]})")
            self._found[kind][stage] = pickle.loads(data)
        return [self._found[name][stage] for stage in range(self._where.stages)]

    def ending(self, deadline: float) -> str:
        """Wait for the end of all processes; the report of the stage that failed, empty where none did."""
        try:
            while (answer := self._queue.get(timeout=deadline))[0] != _END:
                pass
        except queue.Empty:
            raise Broken(f"no end within {deadline:g} s ({_TRY[self._where.device]})") from None
        return answer[2]

    @property
    def alive(self) -> list[BaseProcess]:
        """The processes that have not ended."""
        return [one for one in multiprocessing.active_children() if one not in self._before]

    def stop(self) -> None:
        """End what still runs."""
        for process in self.alive:
            process.kill()
            process.join()
        self._thread.join(5)  # without its processes launch comes back
        self._queue.close()

    def _launch(self, fn: Callable[..., None], args: tuple[Any, ...]) -> None:
        try:
            launch(fn, self._queue, self._where.stages, *args, stages=self._where.stages)
            said = ""
        except Exception as error:
            said = str(error)
        self._queue.put((_END, 0, said))


def tensors(found: list[dict[str, Any]], where: Place) -> str:
    """Tensors arrive bit-equal at every boundary, both ways."""
    wrong = [
        f"{', '.join(one['wrong'])} at stage {j}" for j, one in enumerate(found) if one["wrong"]
    ]
    if wrong:
        raise Broken(f"arrived changed: {'; '.join(wrong)} ({_TRY[where.device]})")
    rate = min(one["bytes_per_s"] for one in found) / _GIB
    kinds = len(doctor_probes.patterns())
    return (
        f"{kinds} kinds of tensors and their gradients arrive bit-equal; 8 MiB at about {rate:.1f} "
        "GiB/s"
    )


def gradients(
    found: list[tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]], where: Place
) -> str:
    """Gradients and running statistics of K stages are those of one: to the bit on the CPU, nearly on GPUs."""
    alone = found[0][1]
    split = {name: tensor for stage, _ in found for name, tensor in stage.items()}
    assert split.keys() == alone.keys()
    off = {
        name: _off(split[name], alone[name])
        for name in alone
        if not torch.equal(split[name], alone[name])
    }
    against = f"K={where.stages} against K=1, dropout and batch norm included"
    if not off:
        return f"bit-equal, {against}"
    worst = max(off, key=lambda name: off[name])
    allowed = 0.0 if where.device == "cpu" else _RELATIVE
    if not off[worst] <= allowed:
        raise Broken(
            f"{worst}: {off[worst]:.0e} off, {against}; allowed is {allowed:g} (try another build "
            "of torch)"
        )
    return f"within {off[worst]:.0e}, not bit-equal, {against}"


def _off(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference over the largest number."""
    return float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-30))


def memory(found: list[list[int]], where: Place) -> str:
    """Peak memory of every stage can be read."""
    peaks = found[0]
    if min(peaks) <= 0:
        raise Broken(f"the meter shows {peaks} bytes (try another build of torch)")
    return f"peak of each stage in KiB: {', '.join(f'{peak / 1024:.0f}' for peak in peaks)}"


def overhead(found: list[tuple[float, float, float]], where: Place) -> str:
    """What the engine costs when layers do nothing (K=1)."""
    traced, bare, span = found[0]
    return (
        f"{bare:.0f} microseconds an action, {traced:.0f} traced, {span:.1f} a span (K=1, layers "
        "that do nothing)"
    )


def failure(where: Place, deadline: float = DEADLINE) -> str:
    """A stage that fails is reported with its name and error within seconds, and every process ends."""
    stages = Stages(where, doctor_probes.fail)
    try:
        stages.started()
        said = stages.ending(deadline)
        told, left = time.time(), stages.alive
    finally:
        stages.stop()
    injected = re.search(r"injected failure at ([\d.]+)", said)
    if injected is None or f"stage {where.stages - 1}" not in said:
        raise Broken(f"told was only: {_first_and_last(said) or 'nothing'} ({_TRY[where.device]})")
    if left:
        raise Broken(
            f"{len(left)} processes lived on after a stage had failed ({_TRY[where.device]})"
        )
    if (seconds := told - float(injected[1])) > _TOLD_WITHIN:
        raise Broken(
            f"told after {seconds:.1f} s, allowed are {_TOLD_WITHIN:g} s (end other programs)"
        )
    return f"told {seconds:.1f} s later with the stage's name and its error; all processes ended"


# What each stage runs, and what its answers are judged by.
WORKING: dict[str, tuple[Callable[[int], Any], Callable[[list[Any], Place], str]]] = {
    "tensors between neighbours": (doctor_probes.exchange, tensors),
    "gradients": (doctor_probes.gradients, gradients),
    "memory meter": (doctor_probes.peaks, memory),
    "engine overhead": (doctor_probes.overhead, overhead),
}
STARTING, FAILING = "start", "a stage that fails"


def run_all(where: Place, deadline: float = DEADLINE) -> Iterator[Check]:
    """Every check as it ends; skipped where torch has no backend to carry messages."""
    if not (dist.is_available() and dist.is_gloo_available()):
        yield from _skipped(
            (STARTING, *WORKING, FAILING), "this torch has no gloo to carry messages"
        )
        return
    # it tells every process that it ends
    logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.ERROR)
    todo = list(WORKING)
    while todo:
        stages = Stages(where, doctor_probes.serve, [(name, WORKING[name][0]) for name in todo])
        try:
            check = _timed(STARTING, stages.started)
            if len(todo) == len(WORKING) or check.status != "ok":
                yield check
            if check.status != "ok":
                yield from _skipped((*todo, FAILING), "its stage processes did not start")
                return
            while todo and check.status == "ok":
                check = _timed(todo[0], _judged, stages, todo.pop(0), where, deadline)
                yield check
        finally:
            stages.stop()
    yield _timed(FAILING, failure, where, deadline)


def _skipped(names: Iterable[str], reason: str) -> Iterator[Check]:
    return (Check(name, "skipped", reason, 0.0) for name in names)


def _judged(stages: Stages, name: str, where: Place, deadline: float) -> str:
    return WORKING[name][1](stages.answers(name, deadline), where)


def _timed(name: str, body: Callable[..., str], *args: Any) -> Check:
    began = time.perf_counter()
    try:
        status, said = "ok", body(*args)
    except Broken as error:
        status, said = "failed", str(error)
    return Check(name, status, said, time.perf_counter() - began)


def _first_and_last(text: str) -> str:
    """Of a traceback: which stage, and why."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return ": ".join(dict.fromkeys([*lines[:1], *lines[-1:]]))


def print_checks() -> int:
    """Print every check as it ends; returns the exit status: 0, or 1 when something does not work.

    Raises:
        ValueError: under torchrun, whose processes are not the checks' own.
    """
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        raise ValueError(
            f"--check with RANK={os.environ['RANK']}: the checks start processes of their own; run "
            "it without torchrun"
        )
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    where = place()
    console.print(f"\nchecking {where.words}", style="bold")
    worst = 0
    for check in run_all(where):
        style = {"ok": "green", "failed": "bold red"}.get(check.status)
        console.print(str(check), style=style, soft_wrap=True)
        worst = max(worst, check.status == "failed")
    return int(worst)
