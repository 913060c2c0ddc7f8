"""Schedules as values: for each stage, the ordered list of what it does.

The same value is executed by the engine, laid on a virtual clock by `replay`, checked and drawn.
Sources: Figure 2 (c) and section 2.3 of arXiv:1811.06965v5.
"""

from dataclasses import dataclass
from typing import NamedTuple


class Action(NamedTuple):
    """One thing a stage has to do: kind "F", "R" or "B", on stage j, for micro-batch i, in an optimizer step."""

    kind: str
    stage: int
    micro_batch: int
    step: int = 0

    def __str__(self) -> str:
        return f"{self.kind}{self.micro_batch} on stage {self.stage}"


@dataclass(frozen=True)
class Schedule:
    """What each rank does, in order.

    Attributes:
        name: one of `SCHEDULES`.
        stages: K.
        micro_batches: M.
        checkpoint: which micro-batches are recomputed.
        ranks: for each rank its actions in order.
        early: whether R runs before the gradient from the next stage has arrived, as the paper's does
            (section 2.3), or only after it, as in peers that recompute inside B.
    """

    name: str
    stages: int
    micro_batches: int
    checkpoint: str
    ranks: tuple[tuple[Action, ...], ...]
    early: bool = True

    def needs(self, action: Action) -> Action | None:
        """The action on the neighbouring stage whose message this one waits for, or None."""
        i, j, step = action.micro_batch, action.stage, action.step
        if action.kind == "F":
            return Action("F", j - 1, i, step) if j else None
        if action.kind == "B" or (action.kind == "R" and not self.early):
            return Action("B", j + 1, i, step) if j + 1 < self.stages else None
        return None

    def receiver(self, action: Action) -> int | None:
        """The neighbouring stage that gets what this action makes, or None."""
        target = action.stage + {"F": 1, "B": -1}.get(action.kind, self.stages)
        return target if 0 <= target < self.stages else None

    def recomputed(self, stage: int) -> frozenset[int]:
        """The micro-batches that this stage forwards without keeping inner activations."""
        return frozenset(a.micro_batch for a in self.ranks[stage] if a.kind == "R")

    def forward_only(self) -> "Schedule":
        """The same forwards and nothing else: evaluation."""
        ranks = tuple(tuple(a for a in rank if a.kind == "F") for rank in self.ranks)
        return Schedule(f"{self.name}, forward only", self.stages, self.micro_batches, "never", ranks)


@dataclass(frozen=True)
class Part:
    """What one stage does in a schedule.

    Attributes:
        schedule: the whole of it.
        actions: this stage's, in order.
        recomputed: micro-batches whose F keeps no inner activations.
        arriving: micro-batches in the order in which the stage before forwards them.
        returning: micro-batches in the order in which the stage after differentiates them.
        last_backward: the action after which this stage's gradients are final.
    """

    schedule: Schedule
    actions: tuple[Action, ...]
    recomputed: frozenset[int]
    arriving: list[int]
    returning: list[int]
    last_backward: Action | None

    @classmethod
    def of(cls, schedule: Schedule, stage: int) -> "Part":
        """That of stage j."""
        before, after = (schedule.ranks[j] if 0 <= j < schedule.stages else () for j in (stage - 1, stage + 1))
        actions = schedule.ranks[stage]
        return cls(
            schedule,
            actions,
            schedule.recomputed(stage),
            [a.micro_batch for a in before if a.kind == "F"],
            [a.micro_batch for a in after if a.kind == "B"],
            next((a for a in reversed(actions) if a.kind == "B"), None),
        )
