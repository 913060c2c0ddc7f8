"""Links that are slowed down to a given speed: the effect of a slow network, on one host.

Before every tensor goes a stamp: the moment at which the receiver may have the tensor, on the clock
of time.perf_counter, which the processes of a Linux host share. The receiver sleeps until then,
outside of any span, so `breakdown` counts the sleep as transfer.
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
from repro.gpipe.partition.layer_costs import LinkSpeed
from repro.gpipe.runtime.clock import wait_until

_STAMP = TensorMeta((1,), (1,), (1,), torch.float64, requires_grad=False)


class Throttled(Link):
    """A link that sends one tensor at a time, and delivers each `latency` seconds after it is sent.

    Latencies overlap: a message of several tensors has the latency once.

    Args:
        link: the link that really carries the tensors; if it is slower, tensors arrive later.
        stamps: another link between the same stages, in the same direction. On the same link a
            stamp would queue behind large tensors, and take a segment of shared memory that was
            made for them.
        speed: the speed of the throttled link.

    Attributes:
        free: the moment at which all tensors are sent, in seconds of time.perf_counter.
    """

    def __init__(self, link: Link, stamps: Link, speed: LinkSpeed) -> None:
        self._link, self._stamps, self._speed = link, stamps, speed
        self.free = -math.inf

    def isend(self, tensor: Tensor) -> Callable[[], Any] | None:
        """Start to send the stamp and the tensor; a tensor without elements is free."""
        if not tensor.numel():
            return self._link.isend(tensor)
        begins = max(self.free, time.perf_counter())
        self.free = begins + tensor.nbytes / self._speed.bytes_per_second
        stamp = torch.tensor([self.free + self._speed.latency], dtype=_STAMP.dtype)
        sends = [self._stamps.isend(stamp), self._link.isend(tensor)]
        unfinished = [finish for finish in sends if finish is not None]
        return partial(_finish_all, unfinished) if unfinished else None

    def irecv(self, meta: TensorMeta) -> Callable[[], Tensor]:
        """Start to receive; call the result to wait for the tensor, and then for its time."""
        if not meta.nbytes:
            return self._link.irecv(meta)
        return partial(_arrive, self._stamps.irecv(_STAMP), self._link.irecv(meta))

    def flush(self) -> None:
        """Release the tensors that were sent."""
        self._link.flush()
        self._stamps.flush()

    def close(self) -> None:
        """End both connections."""
        self._link.close()
        self._stamps.close()


def _finish_all(sends: Sequence[Callable[[], Any]]) -> None:
    for finish in sends:
        finish()


def _arrive(stamp: Callable[[], Tensor], arriving: Callable[[], Tensor]) -> Tensor:
    ready = stamp().item()
    tensor = arriving()
    wait_until(ready)  # no receive is pending any more, so the status does not say so
    return tensor


class BusyOutbox(Outbox):
    """The outbox of a stage that cannot compute while it sends: `send` waits until it is done."""

    def send(self, link: Link, tensors: Sequence[Tensor]) -> None:
        """Start to send, and wait as long as a throttled link is busy."""
        super().send(link, tensors)
        if isinstance(link, Throttled):
            wait_until(link.free)


def refuse_impossible(throttle: object, wire: Wire, device: torch.device) -> None:
    """Raise where links cannot be throttled; every stage calls it.

    Raises:
        ValueError: on every stage, if `throttle` is no LinkSpeed, or if a stage is not on the CPU
            of this Linux host.
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
