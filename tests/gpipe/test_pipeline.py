"""What a pipeline does apart from training: evaluation, timelines, memory; layers of odd kinds."""

import time
from itertools import chain
from typing import Any

import pytest
import torch
import torch.distributed as dist
from examples import WIDTH, batch, linear
from torch import nn

from repro.gpipe import LinkSpeed, Pipeline, launch
from repro.gpipe.comm import shm
from repro.gpipe.comm.control_channel import ControlChannel
from repro.gpipe.core import memory

MSE = nn.functional.mse_loss
SLOW = LinkSpeed(latency=0.005, bytes_per_second=1e6)


def foreign() -> tuple[set[str], float]:
    """The kinds of links and the offset of clocks where the last stage is on another host."""
    rank = dist.get_rank()
    shm.host = lambda: f"host {rank}"
    pipe, data = Pipeline([linear, linear], 2, 2, device="cpu"), batch()
    with torch.device("meta"):  # where a user's tensors are made
        pipe.train_step(*data, MSE)
    links = pipe.engine.links
    kinds = {type(link).__name__ for link in (*links.incoming.values(), *links.outgoing.values())}
    if rank:
        shm.boot_id = lambda: "elsewhere"
        here = time.perf_counter
        time.perf_counter = lambda: here() - 1000.0
    return kinds, ControlChannel(2, rank).clock_offset(0)


def throttled() -> tuple[float, float, float]:
    """Seconds of a step over slow links, and what is measured of such a link."""
    layers = [nn.Identity(), nn.Linear(2500, 1)]
    pipe = Pipeline(layers, 2, 2, balance=[1, 1], throttle=SLOW, device="cpu")
    x, y = torch.zeros(2, 2500), torch.zeros(2, 1)
    pipe.train_step(x, y, MSE)
    seconds = pipe.train_step(x, y, MSE, trace=True).seconds
    speed = pipe.engine.links.speed()
    pipe.close()
    return seconds, speed.latency, speed.bytes_per_second


def everything() -> tuple[Any, ...]:
    """On two ranks: an evaluation, a prediction, slow links, and what two hosts do."""
    pipe = Pipeline([linear, lambda: nn.Dropout(0.5), linear], 2, 4, device="cpu")
    data = batch()
    with torch.device("meta"):
        result = pipe.evaluate(*data, MSE)
    predicted = pipe.predict(data[0])
    pipe.close()
    slow = throttled()
    return result.loss, (result.outputs, predicted), foreign(), slow


@pytest.fixture(scope="module")
def ran() -> list[Any]:
    return launch(everything, stages=2)


@pytest.mark.alone
def test_results_are_on_every_rank_outputs_on_the_last_and_two_hosts_agree_on_time(ran: Any):
    (loss, outputs, first, _), (other_loss, (evaluated, predicted), second, _) = ran
    assert (loss, outputs) == (other_loss, (None, None))
    assert evaluated.shape == batch()[1].shape
    assert torch.equal(evaluated, predicted)
    assert first == ({"Gloo"}, 0.0), "no shared memory between two hosts"
    # A stage whose clock is 1000 s behind finds that out, to within the time of one exchange.
    assert second == ({"Gloo"}, pytest.approx(1000.0, abs=0.05))


@pytest.mark.alone
def test_a_throttled_link_takes_what_arithmetic_says_and_is_measured_so(ran: Any):
    """Two messages of 10 kB one after the other, and the gradient of none comes back."""
    seconds, latency, speed = ran[0][3]
    assert seconds >= 2 * 0.01 + SLOW.latency
    assert latency == pytest.approx(SLOW.latency, rel=0.5)
    assert speed == pytest.approx(SLOW.bytes_per_second, rel=0.2)


class Merging(nn.Linear):
    """Adds to its weight for evaluations, as LoRA does, and returns the same memory there."""

    def train(self, mode=True):
        if mode != self.training:
            self.weight.data += -1.0 if mode else 1.0
        return super().train(mode)

    def forward(self, x):
        if self.training:
            return super().forward(x)
        self.out = getattr(self, "out", torch.empty(len(x), WIDTH))
        dropped = nn.functional.dropout(x, 0.5)
        return torch.addmm(self.bias, dropped, self.weight.T, out=self.out)


def test_evaluations_leave_modes_copy_outputs_and_draw_other_numbers_each():
    merging = Merging(WIDTH, WIDTH)
    before = nn.init.zeros_(merging.weight).clone()
    pipe = Pipeline([merging], 1, 2, device="cpu")
    outputs: list[Any] = [pipe.predict(torch.ones(64, WIDTH)) for _ in range(2)]
    first, second = outputs
    assert torch.equal(before, merging.weight)
    assert not torch.equal(first[:32], first[32:])
    assert not torch.equal(first, second)


@pytest.mark.parametrize("recompute", ["always", "never"])
def test_a_micro_batch_without_a_gradient_trains(recompute):
    def loss(outputs, targets):
        return MSE(outputs, targets) if targets.any() else torch.zeros(())

    x, y = batch()
    y[:5] = 0.0
    # It has another value for the mini-batch, where the zeros count.
    pipe = Pipeline([linear], 1, 2, device="cpu", recompute=recompute, without=["LossCheck"])
    pipe.train_step(x, y, loss)
    assert all(p.grad is not None for p in pipe.parameters())


def test_peak_memory_by_hand():
    """Weights and gradients of two layers, the batch, and what a micro-batch keeps."""
    layers = [lambda: nn.Linear(100, 100, bias=False)] * 2
    pipe = Pipeline(layers, 1, 1, device="cpu", recompute="never")
    data = torch.zeros(50, 100), torch.zeros(50, 100), nn.functional.mse_loss
    pipe.train_step(*data)
    between = chain(memory.at_rest(pipe.module, None), data[:2])
    peak = memory.peak_memory(lambda: pipe.train_step(*data), pipe.device, between)
    weights, batch_bytes = 2 * 100 * 100 * 4, 50 * 100 * 4
    # with gradients from the step before, inputs and targets
    resident = 2 * weights + 2 * batch_bytes
    # The first layer's own copy of the inputs. In backward of the last layer: its input, the
    # gradients of its output and input, and its fresh weight gradient; beside them a few numbers of
    # four bytes, the loss and its weight among them.
    expected = resident + 4 * batch_bytes + weights // 2
    assert expected <= peak <= expected + 64
