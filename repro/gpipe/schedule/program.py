"""What the engine executes on one rank."""

from collections.abc import Callable, Iterable

from repro.gpipe.schedule.actions import GRADIENT, Action, Schedule, Work
from repro.gpipe.schedule.ready import Ready, Wait, works


class Program:
    """The actions of a rank, and what the engine looks up before it executes them.

    Attributes:
        actions: all, in order.
        recomputed: what R computes again, so its F keeps no inner activations.
        received: what needs activations ("F") or gradients ("B") from another rank, in the order of
            receiving.
        waits: a receive of a gradient behind the last F, the first one if the order is fixed: what
            needs only the forwards can be done in front of it.
    """

    def __init__(self, schedule: Schedule, rank: int) -> None:
        self._schedule, self._rank = schedule, rank
        self.actions = actions = schedule.actions(rank)
        receives = [a for a in actions if a.kind == "Recv"]
        last_forward = max(n for n, a in enumerate(actions) if a.kind == "F")
        late = [a for a in actions[last_forward:] if a.kind == "Recv" and a.of in GRADIENT]
        self.recomputed = {a.cell for a in actions if a.kind == "R"}
        self.received = {
            "F": [a.cell for a in receives if a.of == "F"],
            "B": [a.cell for a in receives if a.of in GRADIENT],
        }
        self.waits = late[0 if schedule.limit is None else -1] if late else None

    def run(self, is_here: Callable[[Work], bool], wait: Wait) -> Iterable[Action]:
        """The actions in the order in which they are done; see `ready.works` for the arguments."""
        if self._schedule.limit is None:
            return self.actions
        found = works(Ready(self._schedule, self._rank), is_here, wait)
        return self._schedule.with_messages(self._rank, found)
