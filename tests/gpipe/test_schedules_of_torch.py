"""The order of our schedule values against the schedules of torch.distributed.pipelining."""

from typing import Any
from unittest.mock import MagicMock

import pytest
from torch.distributed.pipelining import schedules

from repro.gpipe.schedule.kinds import make_schedule

Order = list[list[tuple[str, int, int]]]


def ours(name: str, K: int, M: int, stages_per_rank: int = 1) -> Order:
    """For each rank, kind, stage and micro-batch of its actions."""
    schedule = make_schedule(name, K * stages_per_rank, M, "never", stages_per_rank)
    return [[(a.kind, a.stage, a.micro_batch) for a in schedule.work(rank)] for rank in range(K)]


def executed(kind: type, K: int, M: int) -> Order:
    """What a schedule of torch with one stage a rank does, on stages that only take notes.

    Its list `pipeline_order` is another one: on the last rank of 1F1B it begins with forward 1.
    """
    ranks: Order = []
    for rank in range(K):
        stage = MagicMock(stage_index=rank)
        for ops in ("fwd_recv", "fwd_send", "bwd_recv", "bwd_send"):
            getattr(stage, f"get_{ops}_ops").return_value = []
        schedule: Any = object.__new__(kind)
        schedule._stage, schedule._num_stages, schedule._n_microbatches = stage, K, M
        schedule._has_backward = schedule._finalize_gradients = schedule.scale_grads = True
        schedule._check_inputs = lambda args, kwargs, *_: (args, kwargs)
        for part in ("initialize_stage", "maybe_compute_loss", "maybe_get_loss", "update_losses"):
            setattr(schedule, f"_{part}", MagicMock())
        schedule._step_microbatches([()] * M, [{}] * M)
        names = {"forward_one_chunk": "F", "backward_one_chunk": "B"}
        calls = [(name, args[0]) for name, args, _ in stage.method_calls if name in names]
        ranks.append([(names[name], rank, i) for name, i in calls])
    return ranks


def listed(kind: type, K: int, M: int, stages_per_rank: int = 1) -> Order:
    """What the ranks of a schedule of torch with several stages each are to do."""
    schedule: Any = object.__new__(kind)
    schedule._n_microbatches = M
    schedule.pp_group_size = K
    schedule.n_local_stages = stages_per_rank
    schedule.number_of_rounds = max(1, M // K)
    schedule.microbatches_per_round = M // schedule.number_of_rounds
    return [
        [
            (action.computation_type.value, action.stage_index, action.microbatch_index)
            for action in schedule._calculate_single_rank_operations(rank)
            if action is not None
        ]
        for rank in range(K)
    ]


@pytest.mark.parametrize("K", [1, 2, 4, 8])
def test_schedules_are_those_of_torch(K):
    """The paper's backwards of GPipe come in reverse, torch's in the order of the forwards."""
    for M in (1, 2, 4, 8, 13):
        for own, other in zip(
            ours("gpipe", K, M), executed(schedules.ScheduleGPipe, K, M), strict=True
        ):
            assert own[:M] == other[:M]
            assert own[M:] == other[: M - 1 : -1]
        if M >= K:  # torch's refuses fewer
            assert ours("1f1b", K, M) == executed(schedules.Schedule1F1B, K, M)
    for M in (4, 8, 12) if K < 8 else ():
        assert ours("zb-h1", K, M) == listed(schedules.ScheduleInterleavedZeroBubble, K, M)


@pytest.mark.parametrize("stages_per_rank", [2, 3])
def test_interleaved_1f1b_is_torchs_where_its_groups_are_equal_or_one(stages_per_rank):
    for K, M in [*((K, groups * K) for K in (2, 3, 8) for groups in (1, 3)), (4, 3), (4, 7)]:
        expected = listed(schedules.ScheduleInterleaved1F1B, K, M, stages_per_rank)
        assert ours("interleaved-1f1b", K, M, stages_per_rank) == expected
