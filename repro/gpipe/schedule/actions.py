"""Schedules as values: for each rank, the ordered list of everything it does.

The same value is executed by the engine, laid on a virtual clock by `replay`, walked through for
memory by `repro.costs.stage_memory`, checked and drawn. Which message belongs to which action
stands in the list, so none of these needs a rule of its own. Sources: Figure 2 (c) and section 2.3
of arXiv:1811.06965v5.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from repro.gpipe.schedule import collector

COMPUTE = ("F", "R", "B", "I", "W")  # the actions that compute a micro-batch
# The actions that make the gradient for which the stage before waits. A schedule has one of them.
GRADIENT = ("B", "I")
Cell = tuple[int, int]  # stage, micro-batch
Producer = tuple[str, int, int]  # see `Action.producer`


class DeadlockError(ValueError):
    """A schedule with ranks that wait for each other and never go on."""


class Action(NamedTuple):
    """One thing that a rank does.

    Attributes:
        kind: "F" forward, "R" recompute, "B" backward, "Send", "Recv", or "U", the optimizer's
            update. A schedule with split backwards has two actions in place of B: "I", the gradient
            of the stage's input, and "W", the gradient of its weights (arXiv:2401.10241).
        rank: of the process that does it.
        stage: j. A Recv has the stage that needs the message, U the first stage of the rank.
        micro_batch: index i; -1 for U.
        of: what a Send or Recv carries: "F" for the activations that an F makes, "B" or "I" for
            the gradients that a B or I makes.
        peer: the rank at the other end of a Send or Recv.
    """

    kind: str
    rank: int
    stage: int
    micro_batch: int
    of: str = ""
    peer: int = -1

    @property
    def cell(self) -> Cell:
        """(stage, micro-batch): what an F, R or B computes, or a Send or Recv carries."""
        return self.stage, self.micro_batch

    @property
    def producer(self) -> Producer:
        """(kind, stage, micro-batch) of the F, B or I whose result a Send or Recv carries.

        It identifies the message, since a Send and its Recv have the same producer.
        """
        kind, _, stage, micro_batch, of, _ = self
        if kind == "Recv":
            stage += -1 if of == "F" else 1
        return of, stage, micro_batch

    @property
    def label(self) -> str:
        """`F3`, `Recv F3` or `U`."""
        if self.kind == "U":
            return "U"
        if self.kind in COMPUTE:
            return f"{self.kind}{self.micro_batch}"
        return f"{self.kind} {self.of}{self.micro_batch}"

    @property
    def awaited(self) -> str:
        """Whom a Recv or U waits for."""
        return "all ranks" if self.kind == "U" else f"rank {self.peer}"

    def __str__(self) -> str:
        return f"{self.label} on stage {self.stage}"


@dataclass(frozen=True)
class Schedule:
    """What each rank does, in order.

    A Send starts a message and does not wait for it. A Recv comes where its message is needed; the
    engine posts the receive earlier. A rank that holds several stages holds every K-th one, K being
    the number of ranks.

    Attributes:
        name: one of `SCHEDULES`.
        stages: how many there are, which is K if each rank holds one.
        micro_batches: M.
        checkpoint: which micro-batches are recomputed.
        ranks: for each rank its actions in order.
    """

    name: str
    stages: int
    micro_batches: int
    checkpoint: str
    ranks: tuple[tuple[Action, ...], ...]

    @property
    def stages_per_rank(self) -> int:
        """How many stages each rank holds."""
        return self.stages // len(self.ranks)

    @cached_property
    @collector.paused()
    def in_order(self) -> list[Action]:
        """All actions of all ranks, each after those that it needs; all U together.

        Raises:
            DeadlockError: if some actions can never start. The message names the blocked ones.
        """
        ordered: list[Action] = []
        sent: set[Producer] = set()
        # Each rank runs until it needs a message that is not sent yet, or until its update. It goes
        # on when that message is sent, or when all ranks have come to their update.
        position = [0] * len(self.ranks)  # of the next action of each rank
        runnable = set(range(len(self.ranks)))
        waiting: dict[Producer, int] = {}  # message -> the rank that needs it
        updating: set[int] = set()  # ranks whose next action is U
        while runnable:
            rank = runnable.pop()
            actions, at = self.ranks[rank], position[rank]
            while at < len(actions):
                action = actions[at]
                kind = action[0]  # a field by name takes several times as long
                if kind == "Recv":
                    message = action.producer
                    if message not in sent:
                        waiting[message] = rank
                        break
                elif kind == "Send":
                    message = action.producer
                    sent.add(message)
                    if message in waiting:
                        runnable.add(waiting.pop(message))
                elif kind == "U":
                    updating.add(rank)
                    break
                ordered.append(action)
                at += 1
            position[rank] = at
            if len(updating) == len(self.ranks):
                ordered += [self.ranks[rank][position[rank]] for rank in updating]
                position = [at + 1 for at in position]
                runnable, updating = updating, set()
        unfinished = zip(self.ranks, position, strict=True)
        blocked = [actions[at] for actions, at in unfinished if at < len(actions)]
        if blocked:
            waits = ", ".join(f"{action} waits for {action.awaited}" for action in blocked)
            raise DeadlockError(f"the schedule deadlocks: {waits}")
        return ordered

    def work(self, rank: int) -> tuple[Action, ...]:
        """All actions of a rank that compute a micro-batch, in order."""
        return tuple(action for action in self.ranks[rank] if action.kind in COMPUTE)

    def forward_only(self) -> "Schedule":
        """The schedule of an evaluation: every F and its messages, and nothing else."""
        ranks = tuple(tuple(a for a in rank if "F" in (a.kind, a.of)) for rank in self.ranks)
        name = f"{self.name}, forward only"
        return Schedule(name, self.stages, self.micro_batches, "never", ranks)


@dataclass(frozen=True)
class Program:
    """The actions of a rank, and what the engine looks up before it executes them.

    Attributes:
        actions: all, in order.
        recomputed: what R computes again, so its F keeps no inner activations.
        activations: what needs activations from another rank, in the order of receiving.
        gradients: what needs gradients from another rank, in the order of receiving.
        waits: the first receive of a gradient behind the last F: what needs only the forwards can
            be done in front of it.
        last_backward: the action after which the gradients of this rank are final.
    """

    actions: tuple[Action, ...]
    recomputed: frozenset[Cell]
    activations: list[Cell]
    gradients: list[Cell]
    waits: Action | None
    last_backward: Action | None

    @classmethod
    def of(cls, schedule: Schedule, rank: int) -> "Program":
        """The program of one rank."""
        actions = schedule.ranks[rank]
        receives = [a for a in actions if a.kind == "Recv"]
        backwards = [a for a in actions if a.kind == "B"]
        last_forward = max(n for n, a in enumerate(actions) if a.kind == "F")
        late = [a for a in actions[last_forward:] if a.kind == "Recv" and a.of == "B"]
        return cls(
            actions,
            recomputed=frozenset(a.cell for a in actions if a.kind == "R"),
            activations=[a.cell for a in receives if a.of == "F"],
            gradients=[a.cell for a in receives if a.of == "B"],
            waits=late[0] if late else None,
            last_backward=backwards[-1] if backwards else None,
        )
