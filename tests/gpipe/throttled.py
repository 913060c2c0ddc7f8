"""Functions of the stage processes of `test_throttle.py`, which spawned processes can import."""

from unittest import mock

import torch
import torch.distributed as dist
from examples import batch, linear
from torch import nn
from transports import Kill

from repro.gpipe import LinkSpeed, Pipeline, breakdown
from repro.gpipe.comm import shm
from repro.gpipe.comm.control_channel import Wire
from repro.gpipe.comm.links import Links
from repro.models import build

CPU = torch.device("cpu")
F, B = 0.01, 0.02  # seconds of each layer
MESSAGE = 4000  # bytes of one micro-batch of one example
LATENCY, SECONDS = 0.02, 0.04  # of a message, and of its bytes
FAR = LinkSpeed(LATENCY)
NARROW = LinkSpeed(bytes_per_second=MESSAGE / SECONDS)
BUSY = LinkSpeed(bytes_per_second=MESSAGE / SECONDS, overlap=False)
STEPS = [(2, 1, FAR), (3, 1, FAR), (2, 4, FAR), (2, 4, NARROW), (2, 4, BUSY)]

MEASURED = LinkSpeed(0.01, 2e7, overlap=False)


def everything() -> dict:
    """Step times, link measurements and their effects, and errors, of up to 3 stages."""
    rank = dist.get_rank()
    results: dict = {}
    results["steps"] = {case: step(*case) for case in STEPS if rank < case[0]}
    if rank < 2:
        results["speed"] = speed()
        results["cuts"] = [cut(None), cut(LinkSpeed(bytes_per_second=2e5))]
        results["refused"] = [refused(*case) for case in impossible(rank)]
    return results


def step(K: int, M: int, throttle: LinkSpeed) -> tuple[float, dict[str, float]]:
    """The quickest of a few steps of K timed layers: seconds, and shares of the breakdown."""
    model = build("timed", L=K, forward_s=F, backward_s=B, elements=MESSAGE // 4)
    pipe = Pipeline(model.layers, K, M, throttle=throttle, device="cpu")
    timelines = []
    for _ in range(4):
        pipe.barrier()
        timeline = pipe.train_step(*model.batch(M, 0), model.loss, trace=True).timeline
        assert timeline is not None
        timelines.append(timeline)
    pipe.close()
    best = min(timelines[1:], key=lambda timeline: timeline.step_time)
    return best.step_time, breakdown(best, pipe.schedule)


def speed() -> LinkSpeed:
    """What is measured of a throttled link between two stages."""
    links = Links(Wire(2, dist.get_rank()), CPU, "auto", MEASURED)
    found = links.speed()
    links.close()
    return found


def cut(throttle: LinkSpeed | None) -> tuple[int, ...]:
    """Balance by time of four equal layers, whose boundaries take 30, 40 and 0 ms throttled."""
    model = build("timed", L=4, elements=[1500, 2000, 2, 2])
    how: dict = {"balance": "time", "sample": model.batch(1, 0)[0], "throttle": throttle}
    pipe = Pipeline(model.layers, 2, 1, device="cpu", **how)
    pipe.close()
    return pipe.balance


def impossible(rank: int) -> list[tuple]:
    """Throttles that are impossible on this rank, each with the host name that the rank reports."""
    return [(0.02, "here"), (FAR, f"host {rank}"), ([FAR, NARROW][rank], "here")]


def refused(throttle: LinkSpeed, host: str) -> str:
    """What is said to that."""
    with mock.patch.object(shm, "host", return_value=host):
        try:
            Pipeline([linear, linear], 2, 2, device="cpu", throttle=throttle)
        except ValueError as error:
            return str(error)
    return "accepted"


def killed() -> None:
    """A training whose second stage is killed while the first one waits for its message."""
    pipe = Pipeline([linear, Kill], 2, 2, device="cpu", balance=[1, 1], throttle=LinkSpeed(0.1))
    pipe.train_step(*batch(), nn.functional.mse_loss)


def long_wait() -> float:
    """The loss of an evaluation whose messages take longer than silence may."""
    model = build("timed", L=2, forward_s=0.0, backward_s=0.0)
    pipe = Pipeline(model.layers, 2, 1, device="cpu", throttle=LinkSpeed(5.0))
    return pipe.evaluate(*model.batch(1, 0), model.loss).loss
