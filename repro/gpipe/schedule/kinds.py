"""The kinds of schedules: (kind, K, M, recompute) -> a schedule.

A kind only orders F and B of each rank, or F, I and W. `_with_recompute` inserts R, so that every
kind has every recompute mode, and `Schedule.actions` inserts the messages and the update.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Literal, NamedTuple, get_args

from repro.gpipe.errors import check_counts, one_of
from repro.gpipe.schedule.actions import GRADIENT, Schedule, Work
from repro.gpipe.schedule.replay import replay

Recompute = Literal["always", "except_last", "never"]
RECOMPUTE_MODES: tuple[str, ...] = get_args(Recompute)


KEPT = 2  # micro-batches between F and W for each of K ranks, at most, if a rank does what is ready


class Kind(NamedTuple):
    """One kind of schedule.

    Attributes:
        order: (rank, K, M) -> F and B, or F, I and W, of that rank in order. An interleaved kind
            has a fourth argument, the stages of a rank.
        late: whether R waits for the gradient from the next stage, as in libraries that recompute
            inside B. The paper's does not (section 2.3).
        interleaved: whether a rank holds several stages.
        split: whether backwards are split into I and W.
        ready: whether a rank does what is ready, see `ready`. Then `order` has nothing to say.
    """

    order: Callable[..., list[Work]]
    late: bool = False
    interleaved: bool = False
    split: bool = False
    ready: bool = False


def _gpipe(rank: int, ranks: int, micro_batches: int) -> list[Work]:
    """Fill and drain: all forwards, then all backwards in reverse order (Figure 2 (c))."""
    order = range(micro_batches)
    forwards: list[Work] = [("F", rank, i) for i in order]
    backwards: list[Work] = [("B", rank, i) for i in reversed(order)]
    return forwards + backwards


def _one_f_one_b(rank: int, ranks: int, micro_batches: int) -> list[Work]:
    """PipeDream-flush: fill the pipe with forwards, then one backward for each forward.

    Backwards run in the order of the forwards. A rank has at most K - rank micro-batches between F
    and B.
    """
    forwards: list[Work] = [("F", rank, i) for i in range(micro_batches)]
    backwards: list[Work] = [("B", rank, i) for i in range(micro_batches)]
    return _alternate(forwards, backwards, ahead=ranks - rank)


def _naive(rank: int, ranks: int, micro_batches: int) -> list[Work]:
    """Naive model parallelism: one micro-batch at a time goes forth and back (Figure 2 (b)).

    One rank computes at a time, and K - 1 are idle.
    """
    return [(kind, rank, i) for i in range(micro_batches) for kind in ("F", "B")]


def _interleaved(rank: int, ranks: int, micro_batches: int, stages_per_rank: int) -> list[Work]:
    """1F1B with several stages on each rank: Megatron-LM's order (arXiv:2104.04473, section 2.2).

    A rank takes K micro-batches through its first stage, the same K through its second, and so on,
    then the next K. Backwards do the same from the last stage to the first, each micro-batch in the
    order of the forwards. Each rank is 2 (K - 1 - rank) + (stages a rank - 1) K forwards ahead
    before its first pair of F and B.

    Where M is no multiple of K the last group has up to 2 K - 1 micro-batches, which are as many
    more forwards ahead. A smaller group at the end would deadlock.
    """
    stages = range(rank, ranks * stages_per_rank, ranks)
    starts = range(0, max(1, micro_batches - ranks + 1), ranks)
    groups = [range(start, end) for start, end in pairwise([*starts, micro_batches])]
    forwards: list[Work] = []
    backwards: list[Work] = []
    for group in groups:
        forwards += [("F", stage, i) for stage in stages for i in group]
        backwards += [("B", stage, i) for stage in reversed(stages) for i in group]
    largest_group = max(len(group) for group in groups)
    ahead = 2 * (ranks - 1 - rank) + (stages_per_rank - 1) * largest_group + 1
    return _alternate(forwards, backwards, ahead)


def _alternate(forwards: list[Work], backwards: list[Work], ahead: int) -> list[Work]:
    """`ahead` forwards, then B and F in turn, then the remaining backwards."""
    order = forwards[:ahead]
    for n, backward in enumerate(backwards):
        order.append(backward)
        order += forwards[ahead + n : ahead + n + 1]
    return order


def _zb_h1(rank: int, ranks: int, micro_batches: int) -> list[Work]:
    """ZB-H1: 1F1B with split backwards, W later on later ranks (arXiv:2401.10241, section 2.1).

    I comes as early as B does in 1F1B, but the rank before waits only for I. A rank is `rank` W
    behind its I, and does these while 1F1B would be idle at the end. So each rank has at most K
    micro-batches between F and W. 1F1B has as many on its first rank only: the greatest number is
    the same, and the other ranks keep more.

    With M >= K and F = I = W, the idle time is a third of that of 1F1B: (K-1)(F+I-W), as in Table 2
    there. In general this order has (K-1) max(F+I-W, F, I), since W fills no more than the wait for
    an F or an I.
    """
    return _in_two_parts(_one_f_one_b(rank, ranks, micro_batches), behind=rank)


def _interleaved_zb(rank: int, ranks: int, micro_batches: int, stages_per_rank: int) -> list[Work]:
    """ZB-H1 with several stages on each rank: I and W in place of each B of interleaved 1F1B.

    With v stages a rank, M a multiple of K, and F = I = W for all stages of a rank together, the
    idle time is (K-1) F / v.
    """
    order = _interleaved(rank, ranks, micro_batches, stages_per_rank)
    return _in_two_parts(order, behind=rank)


def _in_two_parts(order: list[Work], behind: int) -> list[Work]:
    """Put I in place of each B, and its W behind so many later I; the last W are at the end."""
    result: list[Work] = []
    later: list[Work] = []
    for kind, stage, i in order:
        if kind == "F":
            result.append(("F", stage, i))
            continue
        result.append(("I", stage, i))
        later.append(("W", stage, i))
        if len(later) > behind:
            result.append(later.pop(0))
    return result + later


SCHEDULES: dict[str, Kind] = {
    "gpipe": Kind(_gpipe),
    "gpipe-late": Kind(_gpipe, late=True),
    "1f1b": Kind(_one_f_one_b),
    "naive": Kind(_naive, late=True),
    "interleaved-1f1b": Kind(_interleaved, interleaved=True),
    "zb-h1": Kind(_zb_h1, split=True),
    "interleaved-zb": Kind(_interleaved_zb, interleaved=True, split=True),
    "zb": Kind(lambda *_: [], split=True, ready=True),
}


def _with_recompute(order: list[Work], recompute: str) -> list[Work]:
    """Put R(i) before B(i) or I(i): always, never, or not where that follows F(i)."""
    result: list[Work] = []
    for work in order:
        kind, stage, i = work
        if kind in GRADIENT and recompute != "never":
            follows = bool(result) and result[-1] == ("F", stage, i)
            if recompute == "always" or not follows:
                result.append(("R", stage, i))
        result.append(work)
    return result


def check_kind(name: str, recompute: str, stages_per_rank: int) -> None:
    """Raise a one-line ValueError for an argument that a kind of schedule does not allow."""
    one_of("schedule", name, SCHEDULES)
    one_of("recompute", recompute, RECOMPUTE_MODES)
    kind = SCHEDULES[name]
    if kind.ready and recompute == "except_last":
        raise ValueError(
            f"recompute='except_last': must be 'always' or 'never' for schedule={name!r}, which "
            "has no fixed order; try 'always'"
        )
    if kind.interleaved != (stages_per_rank > 1):
        at_least_2 = "must be at least 2", "try stages_per_rank=2"
        allowed, remedy = at_least_2 if kind.interleaved else ("must be 1", "leave it out")
        raise ValueError(
            f"stages_per_rank={stages_per_rank}: {allowed} for schedule={name!r}; {remedy}"
        )


def make_schedule(
    name: str, stages: int, micro_batches: int, recompute: str = "always", stages_per_rank: int = 1
) -> Schedule:
    """Build a schedule.

    Args:
        name: "gpipe" (recompute early, as in the paper), "gpipe-late" (recompute after the gradient
            has arrived), "1f1b", "naive", "interleaved-1f1b", "zb-h1", "interleaved-zb" or "zb"
            (what is ready).
        stages: of all ranks together, at least 1; K where each rank holds one.
        micro_batches: M, at least 1; M=1 is naive model parallelism.
        recompute: "always", "except_last" or "never".
        stages_per_rank: 1, or at least 2 for an interleaved schedule; then K is stages /
            stages_per_rank.

    Raises:
        ValueError: naming the argument that is out of range.
    """
    check_counts(stages=stages, micro_batches=micro_batches, stages_per_rank=stages_per_rank)
    check_kind(name, recompute, stages_per_rank)
    kind = SCHEDULES[name]
    if stages % stages_per_rank:
        raise ValueError(
            f"stages={stages}: must be a multiple of stages_per_rank={stages_per_rank}"
        )
    K = stages // stages_per_rank
    counts = (K, micro_batches, stages_per_rank) if kind.interleaved else (K, micro_batches)
    orders = [_with_recompute(kind.order(rank, *counts), recompute) for rank in range(K)]
    limit = KEPT * K if kind.ready else None
    schedule = Schedule(name, stages, micro_batches, recompute, orders, kind.late, limit)
    if not kind.ready:
        return schedule
    drawn = replay(schedule, lambda _kind, _stage: 1.0)
    return replace(schedule, orders=[[span[:3] for span in drawn.on(rank)] for rank in range(K)])
