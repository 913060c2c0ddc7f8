"""The kinds of schedules: (kind, K, M, checkpoint) -> a schedule.

A kind only orders F and B of each rank. `_with_recompute` puts in R, so that every kind has every
checkpoint mode, and `written_out` puts in the messages and the update.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple, get_args

from repro.gpipe.errors import one_of
from repro.gpipe.schedule import collector
from repro.gpipe.schedule.actions import Action, Schedule

Checkpoint = Literal["always", "except_last", "never"]
CHECKPOINTS: tuple[str, ...] = get_args(Checkpoint)
Work = tuple[str, int, int]  # kind F, R or B, stage, micro-batch


class Kind(NamedTuple):
    """One kind of schedule.

    Attributes:
        order: (rank, K, M) -> F and B of that rank in order; of an interleaved kind (rank, K, M,
            stages a rank).
        late: whether R waits for the gradient from the next stage, as in peers that recompute
            inside B. The paper's does not (section 2.3).
        interleaved: whether a rank holds several stages, which the engine does not execute yet.
    """

    order: Callable[..., list[Work]]
    late: bool = False
    interleaved: bool = False


SCHEDULES: dict[str, Kind] = {}


def _kind(
    name: str, *, late: bool = False, interleaved: bool = False
) -> Callable[..., Callable[..., list[Work]]]:
    """Enter a function in `SCHEDULES`; arguments as of `Kind`."""

    def enter(order: Callable[..., list[Work]]) -> Callable[..., list[Work]]:
        SCHEDULES[name] = Kind(order, late, interleaved)
        return order

    return enter


@_kind("gpipe-late", late=True)
@_kind("gpipe")
def _gpipe(rank: int, ranks: int, micro_batches: int) -> list[Work]:
    """Fill and drain: all forwards, then all backwards in reverse order (Figure 2 (c))."""
    order = range(micro_batches)
    return [("F", rank, i) for i in order] + [("B", rank, i) for i in reversed(order)]


@_kind("1f1b")
def _one_f_one_b(rank: int, ranks: int, micro_batches: int) -> list[Work]:
    """PipeDream-flush: as few forwards ahead as keep the pipe full, then one backward for each forward.

    Backwards run in the order of the forwards.
    """
    forwards: list[Work] = [("F", rank, i) for i in range(micro_batches)]
    backwards: list[Work] = [("B", rank, i) for i in range(micro_batches)]
    return _alternating(forwards, backwards, ahead=ranks - rank)


@_kind("interleaved-1f1b", interleaved=True)
def _interleaved(rank: int, ranks: int, micro_batches: int, stages_per_rank: int) -> list[Work]:
    """1F1B in which each rank holds several stages: Megatron-LM's order (arXiv:2104.04473, section 2.2).

    A rank takes K micro-batches through its first stage, the same K through its second, and so on,
    then the next K. Backwards do the same from the last stage to the first, each micro-batch in the
    order of the forwards. Each rank is 2 (K - 1 - rank) + (stages a rank - 1) K forwards ahead
    before its first pair of F and B.

    Where M is no multiple of K the last group has up to 2 K - 1 micro-batches, which are as many
    more forwards ahead. A smaller group at the end would deadlock.
    """
    held = range(rank, ranks * stages_per_rank, ranks)
    starts = range(0, max(1, micro_batches - ranks + 1), ranks)
    groups = [range(a, b) for a, b in pairwise([*starts, micro_batches])]
    forwards: list[Work] = [("F", stage, i) for group in groups for stage in held for i in group]
    backwards: list[Work] = [
        ("B", stage, i) for group in groups for stage in reversed(held) for i in group
    ]
    largest = max(map(len, groups))
    return _alternating(
        forwards, backwards, ahead=2 * (ranks - 1 - rank) + (stages_per_rank - 1) * largest + 1
    )


def _alternating(forwards: list[Work], backwards: list[Work], ahead: int) -> list[Work]:
    """`ahead` forwards, then B and F in turn, then the backwards that are left."""
    actions = forwards[:ahead]
    for n, backward in enumerate(backwards):
        actions.append(backward)
        actions += forwards[ahead + n : ahead + n + 1]
    return actions


EXECUTED = tuple(name for name, kind in SCHEDULES.items() if not kind.interleaved)


def _with_recompute(actions: list[Work], checkpoint: str) -> list[Work]:
    """Put R(i) before B(i): everywhere, or wherever B(i) does not directly follow F(i), or nowhere."""
    result: list[Work] = []
    for action in actions:
        kind, stage, i = action
        if kind == "B" and checkpoint != "never":
            follows = bool(result) and result[-1] == ("F", stage, i)
            if checkpoint == "always" or not follows:
                result.append(("R", stage, i))
        result.append(action)
    return result


def written_out(
    name: str,
    micro_batches: int,
    checkpoint: str,
    orders: Sequence[Sequence[Work]],
    *,
    late: bool = False,
    stages_per_rank: int = 1,
) -> Schedule:
    """The schedule in which each rank computes in this order.

    What an action needs from another rank is received directly before it, what it makes for another
    rank is sent directly after it, and a rank that trains updates at the end.

    Args:
        name: of the schedule.
        micro_batches: M.
        checkpoint: which micro-batches are recomputed, a word for people.
        orders: for each rank F, R and B in order.
        late: receive a gradient before R of its micro-batch, where there is one, instead of before
            B.
        stages_per_rank: how many stages each rank holds.
    """
    K = len(orders)
    stages = K * stages_per_rank
    training = any(kind == "B" for order in orders for kind, _, _ in order)
    ranks: list[tuple[Action, ...]] = []
    for rank, order in enumerate(orders):
        actions: list[Action] = []
        # gradients: where R is late, B need not receive them
        received: set[tuple[int, int]] = set()
        before, after = (rank - 1) % K, (rank + 1) % K
        for kind, stage, i in order:
            # With K=1 neighbouring stages are on one rank, and nothing is sent.
            first, last = stage == 0 or K == 1, stage == stages - 1 or K == 1
            if kind == "F" and not first:
                actions.append(Action("Recv", rank, stage, i, 0, "F", before))
            elif (
                (kind == "B" or (kind == "R" and late)) and not last and (stage, i) not in received
            ):
                actions.append(Action("Recv", rank, stage, i, 0, "B", after))
                received.add((stage, i))
            actions.append(Action(kind, rank, stage, i))
            if kind == "F" and not last:
                actions.append(Action("Send", rank, stage, i, 0, "F", after))
            elif kind == "B" and not first:
                actions.append(Action("Send", rank, stage, i, 0, "B", before))
        if training:
            actions.append(Action("U", rank, rank, -1))
        ranks.append(tuple(actions))
    return Schedule(name, stages, micro_batches, checkpoint, tuple(ranks))


@collector.paused()
def make_schedule(
    name: str, stages: int, micro_batches: int, checkpoint: str = "always", stages_per_rank: int = 1
) -> Schedule:
    """Build a schedule.

    Args:
        name: "gpipe" (recompute early, as in the paper), "gpipe-late" (recompute after the gradient
            has arrived), "1f1b", or "interleaved-1f1b", which is not executed yet.
        stages: of all ranks together, at least 1; K where each rank holds one.
        micro_batches: M, at least 1; M=1 is naive model parallelism.
        checkpoint: "always", "except_last" or "never".
        stages_per_rank: 1, or at least 2 for "interleaved-1f1b"; then K is stages /
            stages_per_rank.

    Raises:
        ValueError: naming the argument that is out of range.
    """
    one_of("schedule", name, SCHEDULES)
    one_of("checkpoint", checkpoint, CHECKPOINTS)
    counts = {"stages": stages, "micro_batches": micro_batches, "stages_per_rank": stages_per_rank}
    for field, value in counts.items():
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{field}={value!r}: must be a whole number, at least 1")
    kind = SCHEDULES[name]
    if kind.interleaved != (stages_per_rank > 1):
        allowed = "at least 2" if kind.interleaved else "1"
        raise ValueError(
            f"stages_per_rank={stages_per_rank}: must be {allowed} for schedule={name!r}"
        )
    if stages % stages_per_rank:
        raise ValueError(
            f"stages={stages}: must be a multiple of stages_per_rank={stages_per_rank}"
        )
    ranks = stages // stages_per_rank
    more = (stages_per_rank,) if kind.interleaved else ()
    orders = [
        _with_recompute(kind.order(rank, ranks, micro_batches, *more), checkpoint)
        for rank in range(ranks)
    ]
    return written_out(
        name, micro_batches, checkpoint, orders, late=kind.late, stages_per_rank=stages_per_rank
    )
