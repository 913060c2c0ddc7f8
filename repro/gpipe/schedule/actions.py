"""Schedules as values: for each rank, the ordered list of everything it does.

The same value is executed by the engine, laid on a virtual clock by `replay`, walked through for
memory by `repro.costs.stage_memory`, and drawn. It has the work of each rank in order; all
of these learn from it which messages the work needs and sends. Sources: Figure 2 (c) and section
2.3 of arXiv:1811.06965v5.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

COMPUTE = ("F", "R", "B", "I", "W")  # the actions that compute a micro-batch
# The actions that make the gradient for which the stage before waits. A schedule has one of them.
GRADIENT = ("B", "I")
Cell = tuple[int, int]  # stage, micro-batch
Work = tuple[str, int, int]  # kind F, R, B, I or W, stage, micro-batch


class Action(NamedTuple):
    """One thing that a rank does.

    Attributes:
        kind: "F" forward, "R" recompute, "B" backward, "Send", "Recv", or "U", the optimizer's
            update. A schedule with split backwards has two actions in place of B: "I", the gradient
            of the stage's input, and "W", the gradient of its weights (arXiv:2401.10241).
        stage: j. A Recv has the stage that needs the message, U the first stage of the rank.
        micro_batch: index i; -1 for U.
        of: what a Send or Recv carries: "F" for the activations that an F makes, "B" or "I" for
            the gradients that a B or I makes.
    """

    kind: str
    stage: int
    micro_batch: int
    of: str = ""

    @property
    def cell(self) -> Cell:
        """(stage, micro-batch): what an F, R or B computes, or a Send or Recv carries."""
        return self.stage, self.micro_batch

    @property
    def label(self) -> str:
        """`F3`, `Recv F3` or `U`."""
        if self.kind == "U":
            return "U"
        if self.kind in COMPUTE:
            return f"{self.kind}{self.micro_batch}"
        return f"{self.kind} {self.of}{self.micro_batch}"


@dataclass(frozen=True)
class Schedule:
    """What each rank does, in order.

    A rank that holds several stages holds every K-th one, K being the number of ranks.

    Attributes:
        name: one of `SCHEDULES`.
        stages: how many there are, which is K if each rank holds one.
        micro_batches: M.
        recompute: which micro-batches are recomputed.
        orders: for each rank F, R and B, or F, R, I and W, in order.
        late: whether a gradient is received before R of its micro-batch, where there is one.
        limit: if given, a rank does what is ready, and keeps at most so many micro-batches from F
            to W, see `ready`. Then `orders` is the order with works of equal lengths.
    """

    name: str
    stages: int
    micro_batches: int
    recompute: str
    orders: Sequence[Sequence[Work]]
    late: bool = False
    limit: int | None = None

    @property
    def stages_per_rank(self) -> int:
        """How many stages each rank holds."""
        return self.stages // len(self.orders)

    def needs(self, kind: str, stage: int) -> tuple[str, int] | None:
        """(kind, stage) of the work of another rank whose result some work of a stage needs.

        With K=1 neighbouring stages are on one rank, and nothing is sent.
        """
        if len(self.orders) == 1:
            return None
        if kind == "F":
            return ("F", stage - 1) if stage else None
        needs_gradient = kind in GRADIENT or (kind == "R" and self.late)
        if needs_gradient and stage + 1 < self.stages:
            return ("I" if kind == "I" else "B"), stage + 1
        return None

    def receiver(self, kind: str, stage: int) -> int | None:
        """The stage on another rank that needs the result of some work of a stage."""
        if len(self.orders) > 1 and kind == "F" and stage + 1 < self.stages:
            return stage + 1
        if len(self.orders) > 1 and kind in GRADIENT and stage:
            return stage - 1
        return None

    def actions(self, rank: int) -> tuple[Action, ...]:
        """The work of a rank in order, with its messages."""
        return tuple(self.with_messages(rank, self.orders[rank]))

    def with_messages(self, rank: int, works: Iterable[Work]) -> Iterator[Action]:
        """Yield work of a rank with its messages; a rank that trains updates at the end.

        What some work needs from another rank is received directly before it; the engine posts the
        receive earlier. What it makes for another rank is sent directly after it: a Send starts a
        message and does not wait for it.
        """
        received: set[Work] = set()
        for kind, stage, i in works:
            if needed := self.needs(kind, stage):
                of, maker = needed
                if (of, maker, i) not in received:
                    yield Action("Recv", stage, i, of)
                    received.add((of, maker, i))
            yield Action(kind, stage, i)
            if self.receiver(kind, stage) is not None:
                yield Action("Send", stage, i, kind)
        if any(kind in GRADIENT for order in self.orders for kind, _, _ in order):
            yield Action("U", rank, -1)

    def forward_only(self) -> "Schedule":
        """The schedule of an evaluation: every F and its messages, and nothing else."""
        orders = tuple(tuple(w for w in order if w[0] == "F") for order in self.orders)
        name = f"{self.name}, forward only"
        return Schedule(name, self.stages, self.micro_batches, "never", orders)
