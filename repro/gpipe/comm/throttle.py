"""Links no faster than they are told to be: what a slow network does to a pipeline, on one host.

A stamp goes ahead of every tensor and says when the receiver may have it. It is a moment on the
clock of time.perf_counter, which the processes of a Linux host share. The receiver sleeps until
then, outside of any span, so `breakdown` counts it as transfer.
"""

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from repro.gpipe.comm import shm
from repro.gpipe.comm.control_channel import Wire
from repro.gpipe.comm.mailbox import Outbox
from repro.gpipe.comm.message import TensorMeta
from repro.gpipe.comm.transport import Link
from repro.gpipe.partition.layer_profile import LinkSpeed
from repro.gpipe.runtime.clock import wait_until

_STAMP = TensorMeta((1,), (1,), (1,), torch.float64, requires_grad=False)


class Throttled(Link):
    """A link that carries one tensor at a time, bytes / bytes_per_second each, which arrives `latency` later.

    The latencies of what follows one another overlap, so a message of several tensors has it once.

    Args:
        link: what really carries the tensors; if it takes longer, they come later.
        stamps: another link between the same stages, in the same direction. On the same one a stamp
            would queue behind large tensors, and take the room in shared memory that was made for
            them.
        speed: of this link.

    Attributes:
        free: when everything that was handed over is on its way, in seconds of time.perf_counter.
    """

    def __init__(self, link: Link, stamps: Link, speed: LinkSpeed) -> None:
        self._link, self._stamps, self._speed = link, stamps, speed
        self.free = -math.inf

    def isend(self, tensor: Tensor) -> Callable[[], Any] | None:
        """Start to send the stamp and the tensor; one without elements is free, as `LinkSpeed.seconds` has it."""
        if not tensor.numel():
            return self._link.isend(tensor)
        self.free = (
            max(self.free, time.perf_counter()) + tensor.nbytes / self._speed.bytes_per_second
        )
        stamp = torch.tensor([self.free + self._speed.latency], dtype=_STAMP.dtype)
        rests = [
            rest
            for rest in (self._stamps.isend(stamp), self._link.isend(tensor))
            if rest is not None
        ]
        return partial(_finish, rests) if rests else None

    def irecv(self, meta: TensorMeta) -> Callable[[], Tensor]:
        """Start to receive; the result waits for the tensor, and then for its time."""
        if not meta.nbytes:
            return self._link.irecv(meta)
        return partial(_arrive, self._stamps.irecv(_STAMP), self._link.irecv(meta))

    def flush(self) -> None:
        """Let go of what was sent."""
        self._link.flush()
        self._stamps.flush()

    def close(self) -> None:
        """End both connections."""
        self._link.close()
        self._stamps.close()


def _finish(rests: Sequence[Callable[[], Any]]) -> None:
    for rest in rests:
        rest()


def _arrive(stamp: Callable[[], Tensor], arriving: Callable[[], Tensor]) -> Tensor:
    ready = stamp().item()
    tensor = arriving()
    wait_until(ready)  # not as one who receives: what is here needs nobody any more
    return tensor


class BusyOutbox(Outbox):
    """Keeps the computing thread until a message is on its way: a stage that cannot compute while it sends."""

    def send(self, link: Link, tensors: Sequence[Tensor]) -> None:
        """Start to send; wait as long as a throttled link is busy."""
        super().send(link, tensors)
        if isinstance(link, Throttled):
            wait_until(link.free)


def refuse_impossible(throttle: object, wire: Wire, device: torch.device) -> None:
    """Every stage of a throttled pipeline calls it.

    Raises:
        ValueError: on every stage, if it is no LinkSpeed, or one of them is not on the CPU of this
            Linux host.
    """
    if not isinstance(throttle, LinkSpeed):
        raise ValueError(
            f"throttle={throttle!r}: must be a LinkSpeed or None; try LinkSpeed(latency=1e-3)"
        )
    gathered = wire.all_gather((device.type, shm.host() if shm.available() else None))
    for stage, (where, host) in enumerate(gathered):
        if where != "cpu":
            raise ValueError(
                f"throttle={throttle}: is for stages on the CPU, stage {stage} is on {where}; try "
                "device='cpu', or leave it out"
            )
        if wire.stages > 1 and (host is None or host != gathered[0][1]):
            raise ValueError(
                f"throttle={throttle}: is for stages that share a Linux host and so a clock, and "
                f"stages 0 and {stage} do not; leave it out"
            )
