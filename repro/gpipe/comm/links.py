"""The links of one rank to its neighbours, and a measurement of their speed."""

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from repro.gpipe.comm.control_channel import Wire
from repro.gpipe.comm.mailbox import Outbox
from repro.gpipe.comm.message import TensorMeta
from repro.gpipe.comm.throttle import BusyOutbox, Throttled, refuse_impossible
from repro.gpipe.comm.transport import ACTIVATION, GRADIENT, STAMPS, TRANSPORTS, Link, connect
from repro.gpipe.errors import one_of
from repro.gpipe.partition.layer_costs import LinkSpeed
from repro.gpipe.runtime.status import flushing

# Sizes in bytes of the messages that `speed` times, and how often it sends each.
_SMALL, _LARGE = 2**12, 2**20
_REPEATS = 4


class Links:
    """Up to four links: activations in from rank r-1 and out to r+1, gradients the other way.

    Args:
        wire: the control channel of this rank. Its neighbours must make their links at the same
            point of their programs.
        device: where this rank keeps its tensors.
        transport: one of `transport.TRANSPORTS`.
        throttle: the most that each link may do, the same on every rank; None: no limit.
        ring: whether the last rank is also linked to the first, as where ranks hold several stages.

    Attributes:
        before: the rank that sends activations here, if any.
        after: the rank that gets activations from here, if any.

    Raises:
        ValueError: if the transport does not exist, or the transport or a throttle is not possible
            on these devices and hosts.
    """

    def __init__(
        self,
        wire: Wire,
        device: torch.device,
        transport: str,
        throttle: LinkSpeed | None = None,
        *,
        ring: bool = False,
    ) -> None:
        one_of("transport", transport, TRANSPORTS)
        device_types = {"shm": ["cpu"], "gloo": ["cpu", "cuda"]}.get(transport, [device.type])
        if device.type not in device_types:
            or_gpu = " or a GPU" if "cuda" in device_types else ""
            raise ValueError(
                f"transport='{transport}': is for stages on the CPU{or_gpu}, this one is on "
                f"{device}; try 'auto'"
            )
        if throttle is not None:
            refuse_impossible(throttle, wire, device)
        self.wire = wire
        ring = ring and wire.stages > 1
        self.before = (wire.rank - 1) % wire.stages if ring or not wire.is_first else None
        self.after = (wire.rank + 1) % wire.stages if ring or not wire.is_last else None
        # Sending a tensor of the CPU takes time of the processor that computes.
        self._overlap = throttle.overlap if throttle else device.type == "cuda"
        make_outbox = BusyOutbox if throttle and not throttle.overlap else Outbox
        self._activations_outbox = self._gradients_outbox = make_outbox()
        if ring:
            # A send may wait for its receiver. In a ring that receiver may itself wait for a
            # gradient from here, so gradients must not queue behind activations.
            self._gradients_outbox = make_outbox()
        self.closed = False
        self._device = device
        self._all: list[Link] = []

        def link(neighbour: int, tag: int, *, outgoing: bool) -> Link:
            new = connect(
                wire, neighbour, tag, device, outgoing=outgoing, transport=transport, ring=ring
            )
            # NCCL makes a communicator at its first use, when both ends wait for each other. One
            # byte is sent now, so that this happens here and not inside a schedule.
            greeting = torch.zeros(1, dtype=torch.uint8, device=device)
            if outgoing:
                self._activations_outbox.send(new, [greeting])
            else:
                new.irecv(TensorMeta.of(greeting))()
            if throttle is not None:
                stamps = connect(
                    wire, neighbour, tag + STAMPS, device, outgoing=outgoing, transport=transport
                )
                new = Throttled(new, stamps, throttle)
            self._all.append(new)
            return new

        # Both ends of a link wait for each other. So the first rank begins with the next one, or
        # all ranks of a ring would wait for the rank before.
        for side in ("after", "before") if wire.is_first else ("before", "after"):
            if side == "before" and self.before is not None:
                self.activations_in = link(self.before, ACTIVATION, outgoing=False)
                self.gradients_out = link(self.before, GRADIENT, outgoing=True)
            elif side == "after" and self.after is not None:
                self.activations_out = link(self.after, ACTIVATION, outgoing=True)
                self.gradients_in = link(self.after, GRADIENT, outgoing=False)

    def send_activations(self, tensors: Sequence[Tensor]) -> None:
        """Start to send tensors to the next rank; raises the error of an earlier send."""
        self._activations_outbox.send(self.activations_out, tensors)

    def send_gradients(self, tensors: Sequence[Tensor]) -> None:
        """Start to send tensors to the rank before; raises the error of an earlier send."""
        self._gradients_outbox.send(self.gradients_out, tensors)

    def sent_bytes(self) -> dict[str, int]:
        """Bytes of "activations" and "gradients" that were sent so far, where there is a link."""
        sent = {}
        if self.after is not None:
            sent["activations"] = self._activations_outbox.sent[self.activations_out]
        if self.before is not None:
            sent["gradients"] = self._gradients_outbox.sent[self.gradients_out]
        return sent

    def flush(self) -> None:
        """Wait until everything is sent; raises the error of a send that failed."""
        with flushing():
            self._activations_outbox.flush()
            self._gradients_outbox.flush()
        for link in self._all:
            link.flush()

    def close(self) -> None:
        """End the helper thread and the connections."""
        self.closed = True
        self._activations_outbox.close()
        if self._gradients_outbox is not self._activations_outbox:
            self._gradients_outbox.close()
        for link in self._all:
            link.close()

    def speed(self) -> LinkSpeed:
        """Speed of the link to rank r+1, from messages there and back; free on the last rank.

        Every rank calls it. The ranks take turns: each answers rank r-1, then asks rank r+1.
        """
        fastest: dict[int, float] = {_SMALL: float("inf"), _LARGE: float("inf")}
        messages = [
            torch.zeros(size, dtype=torch.uint8, device=self._device)
            for size in fastest
            for _ in range(_REPEATS)
        ]
        if not self.wire.is_first:
            for message in messages:
                received = self.activations_in.irecv(TensorMeta.of(message))()
                self.send_gradients([received])
        if not self.wire.is_last:
            for message in messages:
                arriving = self.gradients_in.irecv(TensorMeta.of(message))
                start = time.perf_counter()
                self.send_activations([message])
                arriving().cpu()
                one_way = (time.perf_counter() - start) / 2
                fastest[len(message)] = min(fastest[len(message)], one_way)
        self.flush()
        if self.wire.is_last:
            return LinkSpeed(overlap=self._overlap)
        # A straight line through the two sizes: its slope is 1 / bandwidth, its start the latency.
        slope = max(fastest[_LARGE] - fastest[_SMALL], 1e-9) / (_LARGE - _SMALL)
        latency = max(0.0, fastest[_SMALL] - slope * _SMALL)
        return LinkSpeed(latency, 1.0 / slope, self._overlap)
