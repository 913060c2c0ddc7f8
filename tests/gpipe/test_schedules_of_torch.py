"""The order of our schedule values against the schedules of torch.distributed.pipelining."""

from typing import Any

import pytest
from torch.distributed.pipelining import schedules

from repro.gpipe.schedule.kinds import make_schedule

Order = list[list[tuple[str, int, int]]]


def ours(name: str, K: int, M: int, stages_per_rank: int = 1) -> Order:
    """For each rank, kind, stage and micro-batch of its actions."""
    schedule = make_schedule(name, K * stages_per_rank, M, "never", stages_per_rank)
    return [[(a.kind, a.stage, a.micro_batch) for a in schedule.work(rank)] for rank in range(K)]


def listed(kind: type, K: int, M: int, stages_per_rank: int = 1) -> Order:
    """What each rank of a schedule of torch does."""
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


@pytest.mark.parametrize("K", [1, 2, 4])
def test_zb_h1_is_torchs(K):
    for M in (4, 8, 12):
        assert ours("zb-h1", K, M) == listed(schedules.ScheduleInterleavedZeroBubble, K, M)


@pytest.mark.parametrize("stages_per_rank", [2, 3])
def test_interleaved_1f1b_is_torchs_where_its_groups_are_equal_or_one(stages_per_rank):
    for K, M in [*((K, groups * K) for K in (2, 3, 8) for groups in (1, 3)), (4, 3), (4, 7)]:
        expected = listed(schedules.ScheduleInterleaved1F1B, K, M, stages_per_rank)
        assert ours("interleaved-1f1b", K, M, stages_per_rank) == expected
