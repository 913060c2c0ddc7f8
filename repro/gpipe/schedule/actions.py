"""Schedules as values: (kind, K, M, checkpoint) -> for each stage, the ordered list of what it does.

The same value is executed by the engine, laid on a virtual clock by `replay`, checked and drawn. A schedule only
orders F and B; `_with_recompute` then puts in R, so that every kind has every checkpoint mode.
Sources: Figure 2 (c) and section 2.3 of arXiv:1811.06965v5.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from repro.gpipe.errors import one_of
from repro.gpipe.schedule import collector
from repro.gpipe.schedule.replay import replay

Checkpoint = Literal["always", "except_last", "never"]
CHECKPOINTS: tuple[str, ...] = get_args(Checkpoint)


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

    def __str__(self) -> str:
        return replay(self, lambda _action: 1.0).to_text()


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


def _gpipe(stage: int, stages: int, micro_batches: int) -> list[tuple[str, int]]:
    """Fill and drain: all forwards, then all backwards in reverse order (Figure 2 (c))."""
    order = range(micro_batches)
    return [("F", i) for i in order] + [("B", i) for i in reversed(order)]


def _one_f_one_b(stage: int, stages: int, micro_batches: int) -> list[tuple[str, int]]:
    """PipeDream-flush: as few forwards ahead as keep the pipe full, then one backward for each forward."""
    ahead = min(stages - stage, micro_batches)
    actions = [("F", i) for i in range(ahead)]
    for i in range(micro_batches):
        actions.append(("B", i))
        if ahead + i < micro_batches:
            actions.append(("F", ahead + i))
    return actions


SCHEDULES: dict[str, Callable[[int, int, int], list[tuple[str, int]]]] = {
    "gpipe": _gpipe,
    "gpipe-late": _gpipe,
    "1f1b": _one_f_one_b,
}


def _with_recompute(actions: list[tuple[str, int]], checkpoint: str) -> list[tuple[str, int]]:
    """Put R(i) before B(i): everywhere, or wherever B(i) does not directly follow F(i), or nowhere."""
    result: list[tuple[str, int]] = []
    for kind, i in actions:
        follows = bool(result) and result[-1] == ("F", i)
        if kind == "B" and (checkpoint == "always" or (checkpoint == "except_last" and not follows)):
            result.append(("R", i))
        result.append((kind, i))
    return result


def check(schedule: Schedule) -> None:
    """Raise a ValueError, one line, for what would deadlock or leave a message without a receiver."""
    training = any(action.kind == "B" for rank in schedule.ranks for action in rank)
    needed = sorted((kind, i) for kind in ("FB" if training else "F") for i in range(schedule.micro_batches))
    for j, actions in enumerate(schedule.ranks):
        wrong = f"schedule {schedule.name!r}: stage {j}"
        at = {(action.kind, action.micro_batch): n for n, action in enumerate(actions)}
        if any(action.stage != j for action in actions):
            raise ValueError(f"{wrong} has an action of another stage; the n-th list is stage n's")
        if sorted((a.kind, a.micro_batch) for a in actions if a.kind != "R") != needed:
            raise ValueError(f"{wrong} must do each of F{' and B' * training} 0 to {needed[-1][1]} exactly once")
        for kind, i in at:
            if (kind == "B" and at["F", i] > at["B", i]) or (
                kind == "R" and not at["F", i] < at["R", i] < at.get(("B", i), -1)
            ):
                raise ValueError(f"{wrong} does {kind}{i} at the wrong time; the order is F, R, B")
    replay(schedule, lambda _action: 1.0)


@collector.paused()
def make_schedule(name: str, stages: int, micro_batches: int, checkpoint: str = "always") -> Schedule:
    """Build a schedule.

    Args:
        name: "gpipe" (recompute early, as in the paper), "gpipe-late" (recompute after the gradient has arrived),
            "1f1b".
        stages: K, at least 1.
        micro_batches: M, at least 1; M=1 is naive model parallelism.
        checkpoint: "always", "except_last" or "never".

    Raises:
        ValueError: naming the argument that is out of range.
    """
    one_of("schedule", name, SCHEDULES)
    one_of("checkpoint", checkpoint, CHECKPOINTS)
    for field, value in (("stages", stages), ("micro_batches", micro_batches)):
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{field}={value!r}: must be a whole number, at least 1")
    ranks = tuple(
        tuple(Action(kind, j, i) for kind, i in _with_recompute(SCHEDULES[name](j, stages, micro_batches), checkpoint))
        for j in range(stages)
    )
    return Schedule(name, stages, micro_batches, checkpoint, ranks, early=name != "gpipe-late")
