"""All connections of one stage to its neighbours, and how fast they are."""

import time

import torch

from repro.gpipe.comm.control_channel import Wire
from repro.gpipe.comm.mailbox import Outbox
from repro.gpipe.comm.message import TensorMeta
from repro.gpipe.comm.throttle import BusyOutbox, Throttled, refuse_impossible
from repro.gpipe.comm.transport import ACTIVATION, GRADIENT, STAMPS, TRANSPORTS, Link, connect
from repro.gpipe.errors import one_of
from repro.gpipe.partition.layer_profile import LinkSpeed
from repro.gpipe.runtime.status import flushing

_SMALL, _LARGE = 2**12, 2**20  # bytes of the messages that are timed
_REPEATS = 4


class Links:
    """Up to four links: activations come from the stage before and go to the stage after, gradients the other way.

    Args:
        wire: of this stage; its neighbours must make theirs at the same point.
        device: where tensors live here.
        transport: one of `transport.TRANSPORTS`.
        throttle: what each link is to be no faster than, the same on every stage; None leaves them
            as they are.

    Raises:
        ValueError: if the transport does not exist or cannot be had here, or links cannot be
            throttled here.
    """

    def __init__(
        self, wire: Wire, device: torch.device, transport: str, throttle: LinkSpeed | None = None
    ) -> None:
        one_of("transport", transport, TRANSPORTS)
        served = {"shm": ["cpu"], "gloo": ["cpu", "cuda"]}.get(transport, [device.type])
        if device.type not in served:
            what = " or a GPU" if "cuda" in served else ""
            raise ValueError(
                f"transport='{transport}': is for stages on the CPU{what}, this one is on "
                f"{device}; try 'auto'"
            )
        if throttle is not None:
            refuse_impossible(throttle, wire, device)
        self.wire = wire
        self.before = wire.rank - 1 if wire.rank else None
        self.after = wire.rank + 1 if wire.rank + 1 < wire.stages else None
        # Where tensors are on the CPU, sending them takes the processor that computes.
        self._overlap = throttle.overlap if throttle else device.type == "cuda"
        self.outbox = BusyOutbox() if throttle and not throttle.overlap else Outbox()
        self.closed = False
        self._device = device
        self._all: list[Link] = []

        def link(neighbour: int, tag: int, *, outgoing: bool) -> Link:
            made = connect(wire, neighbour, tag, device, outgoing=outgoing, transport=transport)
            # NCCL makes a communicator when it is first used, and both ends wait for each other:
            # here, in no schedule.
            greeting = torch.zeros(1, dtype=torch.uint8, device=device)
            if outgoing:
                self.outbox.send(made, [greeting])
            else:
                made.irecv(TensorMeta.of(greeting))()
            if throttle is not None:
                stamps = connect(
                    wire, neighbour, tag + STAMPS, device, outgoing=outgoing, transport=transport
                )
                made = Throttled(made, stamps, throttle)
            self._all.append(made)
            return made

        if self.before is not None:
            self.activations_in = link(self.before, ACTIVATION, outgoing=False)
            self.gradients_out = link(self.before, GRADIENT, outgoing=True)
        if self.after is not None:
            self.activations_out = link(self.after, ACTIVATION, outgoing=True)
            self.gradients_in = link(self.after, GRADIENT, outgoing=False)

    def flush(self) -> None:
        """Wait until everything is sent; raises what a send raised."""
        with flushing():
            self.outbox.flush()
        for link in self._all:
            link.flush()

    def close(self) -> None:
        """End the helper thread and the connections."""
        self.closed = True
        self.outbox.close()
        for link in self._all:
            link.close()

    def speed(self) -> LinkSpeed:
        """What a message to the stage after takes, timed there and back; every stage calls it. Free if there is none.

        The stages take turns: each answers the one before, then asks the one after.
        """
        took: dict[int, float] = {_SMALL: float("inf"), _LARGE: float("inf")}
        messages = [
            torch.zeros(size, dtype=torch.uint8, device=self._device)
            for size in took
            for _ in range(_REPEATS)
        ]
        for message in messages if self.before is not None else ():
            self.outbox.send(
                self.gradients_out, [self.activations_in.irecv(TensorMeta.of(message))()]
            )
        for message in messages if self.after is not None else ():
            arriving = self.gradients_in.irecv(TensorMeta.of(message))
            start = time.perf_counter()
            self.outbox.send(self.activations_out, [message])
            arriving().cpu()
            took[len(message)] = min(took[len(message)], (time.perf_counter() - start) / 2)
        self.flush()
        if self.after is None:
            return LinkSpeed(overlap=self._overlap)
        slope = max(took[_LARGE] - took[_SMALL], 1e-9) / (_LARGE - _SMALL)
        return LinkSpeed(max(0.0, took[_SMALL] - slope * _SMALL), 1.0 / slope, self._overlap)
