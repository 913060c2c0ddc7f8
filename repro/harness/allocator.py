"""Peak memory as the CPU allocator reports it through torch.profiler, and received shared memory.

It is independent of the counting meter. Markers show where an operator begins and ends. Memory that
is allocated and freed inside one operator is its workspace; all other memory is a visible tensor.
"""

import gc
import json
import weakref
from bisect import bisect
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from operator import itemgetter
from typing import Any, NamedTuple

from torch.profiler import ProfilerActivity, profile, record_function

from repro.gpipe.comm import shm
from repro.gpipe.comm.message import Message
from repro.gpipe.core.memory import TorchDispatchMode
from repro.io.temporary import own_folder

OPERATOR, MESSAGE = "visible operator", "message "


class Peak(NamedTuple):
    """Peak bytes above those at the start."""

    visible: int  # of tensors
    everything: int  # of tensors and of kernels' workspace


class _Markers(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "profiler":  # the marker itself
            return func(*args, **(kwargs or {}))
        with record_function(OPERATOR):
            return func(*args, **(kwargs or {}))


def measure(step: Callable[[], Any]) -> Peak:
    gc.collect()  # else leftovers of earlier steps may be freed in the middle of this one
    on_cpu = [ProfilerActivity.CPU]
    with (
        _messages(),
        profile(activities=on_cpu, profile_memory=True, acc_events=True) as profiler,
        _Markers(),
    ):
        step()
    with own_folder() as folder:
        path = folder / "trace.json"
        profiler.export_chrome_trace(str(path))
        return read(json.loads(path.read_text())["traceEvents"])


@contextmanager
def _messages() -> Iterator[None]:
    """Mark when shared memory becomes a tensor and when that is freed; no allocator sees it."""
    receive = shm.Receiver.receive

    def mark(size: int) -> None:
        with record_function(f"{MESSAGE}{size}"):
            pass

    def receive_and_mark(self: shm.Receiver, key: Hashable) -> Message:
        message = receive(self, key)
        if message.tensors:
            size = message.form.nbytes
            mark(size)
            weakref.finalize(message.tensors[0].untyped_storage(), mark, -size)
        return message

    shm.Receiver.receive = receive_and_mark
    try:
        yield
    finally:
        shm.Receiver.receive = receive


def read(events: list[dict[str, Any]]) -> Peak:
    marked = [e for e in events if e.get("name") == OPERATOR and e["ph"] == "X"]
    operators = sorted((e["ts"], e["ts"] + e["dur"]) for e in marked)

    def operator_at(time: float) -> int | None:
        n = bisect(operators, (time, float("inf"))) - 1
        return n if n >= 0 and time <= operators[n][1] else None

    memory = [e for e in events if e.get("name") == "[memory]" and e["args"]["Device Type"] == 0]
    memory.sort(key=lambda e: e["args"]["Ev Idx"])
    changes: list[tuple[float, int, bool]] = []  # time, bytes, whether of a kernel's workspace
    allocated: dict[int, tuple[float, int]] = {}  # address -> time, bytes
    for e in memory:
        time, size, address = e["ts"], e["args"]["Bytes"], e["args"]["Addr"]
        if size > 0:
            allocated[address] = time, size
        elif address in allocated:  # else of earlier steps
            start, held = allocated.pop(address)
            operator = operator_at(time)
            is_workspace = operator is not None and operator == operator_at(start)
            changes += [(start, held, is_workspace), (time, size, is_workspace)]
    changes += [(start, held, False) for start, held in allocated.values()]
    for e in events:
        name = e.get("name", "")
        if name.startswith(MESSAGE):
            changes.append((e["ts"], int(name.removeprefix(MESSAGE)), False))
    changes.sort(key=itemgetter(0))
    visible = [size for _, size, is_workspace in changes if not is_workspace]
    everything = [size for _, size, _ in changes]
    return Peak(*(max(accumulate(sizes, initial=0)) for sizes in (visible, everything)))
