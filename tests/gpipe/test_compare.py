"""Every way to run a model gives the bits of one device, which trains as plain PyTorch does.

`REPRO_NETWORKS=5000` trains more random networks than the gate does.
"""

import os
from itertools import pairwise
from typing import Any

import pytest
import torch
from compare import as_plain, launch_all, plain, reference, same_bits
from examples import CROSSINGS, REPLACED, M
from random_networks import case

from repro.gpipe import LinkSpeed, PipelineConfig
from repro.gpipe.comm import shm
from repro.gpipe.schedule.actions import COMPUTE, GRADIENT
from repro.gpipe.schedule.kinds import RECOMPUTE_MODES, SCHEDULES, make_schedule

ORDER = "interleaved-1f1b"
SLOW = [LinkSpeed(latency=1e-3, bytes_per_second=1e7, overlap=each) for each in (True, False)]


def config(K: int, recompute: str = "always", schedule: str = "gpipe", **more) -> PipelineConfig:
    """By default M parts, and as many layers on each stage."""
    return PipelineConfig(
        K,
        **{"micro_batches": M, "balance": "uniform", **more},
        recompute=recompute,
        schedule=schedule,
    )


# Every schedule, recompute mode, transport and emulated link; M = 1; replicas.
EVERY_WAY = [
    config(
        2 if SCHEDULES[name].interleaved else 3,
        recompute,
        name,
        stages_per_rank=2 if SCHEDULES[name].interleaved else 1,
    )
    for name in SCHEDULES
    for recompute in RECOMPUTE_MODES
    if recompute != "except_last" or not SCHEDULES[name].ready
]
SCHEDULED = [*EVERY_WAY]
EVERY_WAY += [
    config(3, c, name, micro_batches=1) for name, c in zip(SCHEDULES, RECOMPUTE_MODES, strict=False)
]
EVERY_WAY += [
    config(3, recompute, name, transport=transport)
    for transport in ("gloo", "nccl-like", *["shm"] * shm.available())
    for name, recompute in (("gpipe", "always"), ("gpipe-late", "except_last"), ("1f1b", "never"))
]
EVERY_WAY += [
    config(2, "always", "gpipe", transport=transport, throttle=throttle)
    for transport in ("gloo", "shm")
    for throttle in SLOW
    if shm.available()
]
EVERY_WAY += [
    config(2, "always", ORDER, stages_per_rank=2, transport="gloo"),
    config(1, "always", ORDER, stages_per_rank=3),
    config(3, "never", "zb", transport="gloo"),
    config(2, "never", "interleaved-zb", stages_per_rank=2, replicas=2, micro_batches=2),
]
REPLICAS = [config(2, replicas=2, micro_batches=2), config(1, replicas=2, micro_batches=2)]
REPLICAS += [config(1, "never", ORDER, stages_per_rank=2, replicas=2, micro_batches=2)]
REPLICAS += [config(2, "never", "zb", replicas=2, micro_batches=2)]

# Fewer for the many models: more cuts with the schedules' recompute in turn.
SOME = [config(2), config(3, "except_last"), config(4, "never"), config(2, "always", "1f1b")]
SPLIT = [config(2, "never", "zb-h1"), config(3, "always", "zb-h1"), config(4, "never", "zb")]
INTERLEAVED = [
    config(2, "always", ORDER, stages_per_rank=2),
    config(1, "never", ORDER, stages_per_rank=2),
    config(2, "never", "interleaved-zb", stages_per_rank=2),
]
CUTS = [config(2), config(3), config(3, "never")]
LOOPS = "clipped", "clipped by the largest", "scaled"
# What is trained in one launch.
GROUPS = {
    "every way": {"nested": EVERY_WAY + REPLICAS[:1], "noisy": SCHEDULED + REPLICAS},
    "amoebanet-d": {"amoebanet-d": SOME[:3] + SPLIT[:1]},
    "transformer": {"transformer": SOME + SPLIT + INTERLEAVED[:1]},
    "layers": {
        **dict.fromkeys(("drawing", "changing"), SOME + SPLIT + INTERLEAVED),
        "strided": SOME[:1] + SPLIT[:1],
        "cast": SOME[:3] + SPLIT[:1],
        "tokens": [*SOME[:1], config(3, "never"), config(3), *REPLICAS],
        **dict.fromkeys(("branches", "accumulated"), REPLICAS),
        "norms": [*SOME[:3], *SPLIT, *REPLICAS],
        "compiled": SOME[:1],
        "counting loss": [*SOME[:1], config(2, "never")],
    },
    "loops": {name: [*CUTS, *SPLIT[:1], *REPLICAS[:2]] for name in LOOPS},
    "crossings": dict.fromkeys(CROSSINGS, CUTS),
    # What a replica's forwards change is not what the whole batch's do.
    "replaced": {name: SOME[:1] + REPLICAS[:2] * (name != "buffer") for name in REPLACED},
}
TIGHT = {"cast": (1e-5, 1e-7)}  # bfloat16 where it does not belong is wrong by far more than this
NETWORKS = int(os.environ.get("REPRO_NETWORKS", "200"))
FIRST = int(os.environ.get("REPRO_FIRST_NETWORK", "0"))
PART = 25  # networks of one launch
CHAOTIC = "amoebanet-d"  # tests/models compares its gradients with plain PyTorch in float64


def follows_its_schedule(timeline: Any, config: PipelineConfig) -> None:
    """Each rank has done all work in its order, and none before what it needs was there."""
    stages, held = config.stages * config.stages_per_rank, config.stages_per_rank
    named = config.schedule, stages, config.micro_batches, config.recompute, held
    for rank, order in enumerate(make_schedule(*named).orders):
        *spans, last = timeline.on(rank)
        done = [(s.kind, s.stage, s.micro_batch) for s in spans if s.kind in COMPUTE]
        ordered = sorted if SCHEDULES[config.schedule].ready else list
        assert ordered(done) == ordered(order)
        assert last.kind == "U"
    ends = {(s.kind, s.stage, s.micro_batch): s.end for s in timeline.spans}
    for span in timeline.spans:
        needed = span.stage + (1 if span.kind in GRADIENT else -1)
        if span.kind in ("F", *GRADIENT) and 0 <= needed < stages:
            assert span.start >= ends[span.kind, needed, span.micro_batch]


@pytest.mark.parametrize("group", GROUPS)
def test_the_bits_of_one_device_which_trains_as_plain_pytorch(group):
    cases = [(name, each) for name, configs in GROUPS[group].items() for each in configs]
    references = list(dict.fromkeys((name, reference(each)) for name, each in cases))
    trained = launch_all([*references, *cases])
    for name, each in cases:
        same_bits(trained[name, each], trained[name, reference(each)], (name, each))
        if group == "every way":  # in others some B has no gradient to compute
            follows_its_schedule(trained[name, each].timeline, each)
    for name, each in references:
        found = trained[name, each]
        if name != CHAOTIC:
            rtol, atol = TIGHT.get(name, (1e-4, 1e-6))
            as_plain(found, plain(name, each), rtol=rtol, atol=atol)
        if name == "scaled":
            changes = [b / a for a, b in pairwise(found.losses[1::2])]
            assert {0.5, 2.0} <= {*changes}, "some updates are skipped, and some are not"
        assert len(set(found.losses)) > 1 or name == "none trained", "something is trained"
    assert torch.tensor([x for each in trained.values() for x in each.losses]).isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize("first", range(FIRST, FIRST + NETWORKS, PART))
def test_random_networks_train_as_in_plain_pytorch(first: int):
    numbers = range(first, min(first + PART, FIRST + NETWORKS))
    configs = [(number, case(number)[1]) for number in numbers]
    trained = launch_all([(n, c) for n, config in configs for c in (config, reference(config))])
    wrong = []
    for number, config in configs:
        double = case(number)[2] == torch.float64
        found = trained[number, config]
        try:
            rtol, atol = (1e-7, 1e-9) if double else (2e-3, 2e-5)
            as_plain(found, plain(number, config), rtol=rtol, atol=atol)
            same_bits(found, trained[number, reference(config)])
        except AssertionError as error:
            wrong.append(f"{number}, {config}\n    {' '.join(str(error).split())[:300]}")
    assert not wrong, f"{len(wrong)} of {len(numbers)}:\n" + "\n".join(wrong[:20])
