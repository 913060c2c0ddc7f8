"""The measured side of memory: what the CPU allocator itself says, by torch.profiler, and shared memory that arrives.

Independent of the counting meter. Markers only tell where an operator begins and ends: what is
allocated and freed inside one is its workspace, everything else is a tensor that somebody can see.
"""

import gc
import json
import tempfile
import weakref
from bisect import bisect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

from repro.gpipe.comm import shm
from repro.gpipe.core.memory import TorchDispatchMode

OPERATOR, MESSAGE = "visible operator", "message "


@dataclass(frozen=True)
class Peak:
    """Bytes beyond those at the start: of visible tensors, and of these and kernels' workspace together."""

    visible: int
    everything: int


class _Markers(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "profiler":  # the marker itself
            return func(*args, **(kwargs or {}))
        with record_function(OPERATOR):
            return func(*args, **(kwargs or {}))


def measure(step: Callable[[], Any]) -> Peak:
    """Run a step and read the allocator's events."""
    gc.collect()  # else what is left of earlier steps may end in the middle of this one
    with (
        _messages(),
        profile(
            activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True
        ) as profiler,
        _Markers(),
    ):
        step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return read(json.loads(path.read_text())["traceEvents"])


@contextmanager
def _messages() -> Iterator[None]:
    """Tell when shared memory becomes a tensor here and when that is gone: no allocator sees it."""
    receive = shm.Receiver.receive

    def told(self: shm.Receiver, meta: Any) -> Tensor:
        tensor = receive(self, meta)
        _mark(meta.nbytes)
        weakref.finalize(tensor.untyped_storage(), _mark, -meta.nbytes)
        return tensor

    shm.Receiver.receive = told
    try:
        yield
    finally:
        shm.Receiver.receive = receive


def _mark(size: int) -> None:
    with record_function(f"{MESSAGE}{size}"):
        pass


def read(events: list[dict[str, Any]]) -> Peak:
    """Peaks from a Chrome trace with memory events."""
    operators = sorted(
        (e["ts"], e["ts"] + e["dur"])
        for e in events
        if e.get("name") == OPERATOR and e["ph"] == "X"
    )
    memory = [e for e in events if e.get("name") == "[memory]" and e["args"]["Device Type"] == 0]
    memory.sort(key=lambda e: e["args"]["Ev Idx"])
    changes = [(e["ts"], e["args"]["Bytes"], e["args"]["Addr"]) for e in memory]
    begun: dict[int, int] = {}
    workspace: dict[int, bool] = {}  # of every change but frees of what an earlier step had begun
    for n, (at, size, address) in enumerate(changes):
        if size > 0:
            begun[address], workspace[n] = n, False
        elif (start := begun.pop(address, None)) is not None:
            inside = _operator(operators, at)
            workspace[start] = workspace[n] = inside is not None and inside == _operator(
                operators, changes[start][0]
            )
    seen = [(changes[n][0], changes[n][1], hidden) for n, hidden in workspace.items()]
    seen += [
        (e["ts"], int(e["name"][len(MESSAGE) :]), False)
        for e in events
        if e.get("name", "").startswith(MESSAGE)
    ]
    seen.sort(key=lambda change: change[0])
    visible = everything = 0
    peak = Peak(0, 0)
    for _, size, hidden in seen:
        everything += size
        visible += 0 if hidden else size
        peak = Peak(max(peak.visible, visible), max(peak.everything, everything))
    return peak


def _operator(operators: list[tuple[float, float]], at: float) -> int | None:
    """Which operator runs at this moment."""
    n = bisect(operators, (at, float("inf"))) - 1
    return n if n >= 0 and at <= operators[n][1] else None
