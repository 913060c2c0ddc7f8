"""The messages of one rank in a step: those it made, received or waits for."""

import math
import time
from collections.abc import Callable, Sequence

from repro.gpipe.comm.link import Inbox
from repro.gpipe.comm.links import Links
from repro.gpipe.comm.message import Message
from repro.gpipe.runtime.clock import wait_until
from repro.gpipe.runtime.status import waiting
from repro.gpipe.schedule.actions import Action, Producer, Work
from repro.gpipe.schedule.program import Program

_MOMENT = 5e-5  # seconds between two looks at the messages
_PATIENCE = 0.1  # of the length of a W: how long a message is waited for in front of it


class Exchange:
    """Messages between the stages, on this rank and on its neighbours.

    `needs` says for a kind of work and its stage whose message it needs from another rank.

    Attributes:
        here: what was received or made here and is not used or sent yet, under what made it.
        weights_s: seconds of the last W.
    """

    def __init__(self, links: Links, needs: Callable[[str, int], object]) -> None:
        self._links, self._needs = links, needs
        self.here: dict[Producer, Message] = {}
        self.weights_s = 0.0

    def begin_step(self, program: Program, *, evaluate: bool) -> None:
        """Before the first action of a step: begin to receive."""
        self.here, self._evaluate = {}, evaluate
        orders = {"F": program.activations, "B": program.gradients}
        self._inboxes = {
            of: Inbox(link, orders[of], evaluate=evaluate)
            for of, link in self._links.incoming.items()
        }

    def receive(self, action: Action) -> None:
        """Do a Recv."""
        of = "F" if action.of == "F" else "B"
        self.here[action.producer] = self._inboxes[of].take(action.cell)

    def send(self, action: Action) -> None:
        """Do a Send."""
        stage, i = action.cell
        message = self.here.pop((action.of, stage, i))
        of, receiver = ("F", stage + 1) if action.of == "F" else ("B", stage - 1)
        self._links.send(of, message, (self._evaluate, (receiver, i)))

    def is_here(self, work: Work) -> bool:
        """Whether some work need not wait for a message."""
        kind, stage, _ = work
        of = "F" if kind == "F" else "B"
        return self._needs(kind, stage) is None or self._links.incoming[of].has_arrived()

    def wait_for_one(self, works: Sequence[Work], is_short: bool) -> None:
        """Wait until a message is here that one of these needs, or for a part of the last W."""
        end = time.perf_counter() + (_PATIENCE * self.weights_s if is_short else math.inf)
        channel = self._links.channel
        with waiting(channel.world_rank((channel.rank + 1) % channel.ranks)):
            while not any(map(self.is_here, works)) and time.perf_counter() < end:
                wait_until(time.perf_counter() + _MOMENT)
