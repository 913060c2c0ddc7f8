"""The kinds of schedules: (kind, K, M, checkpoint) -> a schedule.

A kind only orders F and B; `_with_recompute` then puts in R, so that every kind has every checkpoint mode.
"""

from collections.abc import Callable
from typing import Literal, get_args

from repro.gpipe.errors import one_of
from repro.gpipe.schedule import collector
from repro.gpipe.schedule.actions import Action, Schedule

Checkpoint = Literal["always", "except_last", "never"]
CHECKPOINTS: tuple[str, ...] = get_args(Checkpoint)


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
