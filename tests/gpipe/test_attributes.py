"""Random state of a layer; state that a layer moves trains exactly, or the step is refused."""

import math
from copy import deepcopy
from functools import partial
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from examples import refused
from torch import nn

from repro.gpipe import Pipeline
from repro.gpipe.exact import rng
from repro.gpipe.exact.recompute import fingerprint

MSE = nn.functional.mse_loss


class Holding(nn.Linear):
    """Does something with what it holds: draws from a generator, or moves an average."""

    def __init__(self, held, work) -> None:
        super().__init__(4, 4)
        self.held, self.work = held, work

    def forward(self, x):
        return self.work(self, super().forward(x))


def draw(layer, y):
    return y * torch.rand(y.shape, generator=layer.held)


def move(layer, y):
    layer.held = 0.9 * layer.held + 0.1 * y.detach().mean(0)
    return y


def train_head(layer, y):
    layer.held(y.detach()).square().mean().backward()
    return y + layer.held.weight.detach()


class Box:
    """An object that layers hold."""

    n = 0
    last: Any = None


def count_in_box(layer, y):
    layer.held["boxes"][0].n += 1
    return y * layer.held["boxes"][0].n


def count_in_list(layer, y):
    layer.held[0][0] += 1
    return y * layer.held[0][0]


def count_in_set(layer, y):
    layer.held.add(len(layer.held))
    return y * len(layer.held)


def add_in_place(layer, y):
    layer.held[0].add_(1.0)
    return y * float(layer.held[0])


def count_in_tuple(layer, y):
    layer.held = (layer.held[0] + 1,)
    return y * layer.held[0]


def flip(layer, y):
    layer.held = not layer.held
    return y * (1 + layer.held)


MOVED: list[Any] = [
    (set(), count_in_set),
    ([torch.zeros(1)], add_in_place),
    ((0,), count_in_tuple),
    (False, flip),
]


def leave(layer, y):
    layer.held.last = y.detach()
    return y


def leave_once(layer, y):
    layer.held.last = torch.arange(4.0) if layer.held.last is None else layer.held.last
    return y


def take(layer, y):
    return y + layer.held.last


class Later(nn.Linear):
    """Moves a weight, a tensor or a number of another object once its optimizer has moved it."""

    def __init__(self, what: str) -> None:
        super().__init__(4, 4)
        self.what, self.first = what, self.weight.detach().clone()
        self.key = nn.Parameter(torch.zeros(4), requires_grad=False)
        self.mean, self.other = torch.zeros(4), SimpleNamespace(calls=0)

    def forward(self, x):
        if not torch.equal(self.first, self.weight):
            if self.what == "weight":
                self.key.data += 1.0
            elif self.what == "tensor":
                self.mean = self.mean + 1.0
            else:
                self.other.calls += 1
        # The norm behind it would take a sum out again.
        return (super().forward(x) + self.key + self.mean + self.other.calls).tanh()


class Looked(nn.Linear):
    """Keeps what it saw last, for debugging, and a table that it makes in its first forward."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.last, self.written, self.table = torch.zeros(0), torch.zeros(3, 4), None

    def forward(self, x):
        self.last = x
        self.written.copy_(x.detach()[:3])
        self.table = torch.arange(4.0) if self.table is None else self.table
        return super().forward(x) * self.table


def pipeline(kind, recompute, M=2):
    torch.manual_seed(0)
    layers = [kind(), nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 4))]
    return Pipeline(layers, 1, M, recompute=recompute, device="cpu")


def steps(pipe, count=3):
    optimizer = torch.optim.SGD(pipe.parameters(), lr=0.1)
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    return [pipe.train_step(x, x, MSE, optimizer).loss for _ in range(count)]


@pytest.mark.parametrize(
    "kind",
    [
        lambda: Holding(torch.Generator().manual_seed(3), draw),
        partial(Holding, torch.zeros(4), move),
        partial(Later, "tensor"),
        Looked,
        lambda: Holding({"boxes": [Box()]}, count_in_box),
        lambda: Holding([[0]], count_in_list),
        *(lambda each=each: Holding(*deepcopy(each)) for each in MOVED),
        lambda: Holding(np.random.default_rng(0), lambda layer, y: y * layer.held.random()),
        lambda: Holding(np.random.RandomState(0), lambda layer, y: y * layer.held.rand()),
        lambda: Holding(np.zeros(2), lambda layer, y: y * layer.held.__iadd__(1.0)[0]),
    ],
)
def test_state_that_a_layer_moves_is_put_back_for_recomputation(kind):
    assert steps(pipeline(kind, "always")) == steps(pipeline(kind, "never"))


@pytest.mark.parametrize(("held", "work"), MOVED)
def test_state_that_shows_in_no_output_moves_once_in_a_step(held, work):
    """A flag is as before once it has moved twice."""

    def after(recompute):
        layer: Any = Holding(deepcopy(held), lambda layer, y: y + 0 * work(layer, y))
        steps(pipeline(lambda: layer, recompute, M=1))
        return layer.held

    assert after("always") == after("never") != held


def test_a_layer_that_calls_backward_trains_without_recomputation():
    made = [pipeline(lambda: Holding(nn.Linear(4, 1), train_head), c) for c in ("never", "always")]
    x = torch.randn(6, 4)
    assert made[0].compare(x, x, MSE).verdict != "different"
    refused(r"stage 0: a layer calls backward\(\) in its forward", steps, made[1])


@pytest.mark.parametrize("recompute", ["always", "never"])
def test_a_refused_step_keeps_what_was_added_between_steps_or_by_a_forward(recompute):
    """A sparse tensor among it, whose values cannot be compared."""

    def make(layer, y):
        layer.made = torch.eye(4).to_sparse()
        return y

    layer: Any = Holding(None, make)
    pipe = Pipeline([layer], 1, 2, recompute=recompute)
    x = torch.ones(4, 4)
    pipe.train_step(x, x, MSE)
    layer.register_buffer("mask", torch.ones(4))
    with pytest.raises(FloatingPointError):
        pipe.train_step(x * math.inf, x, MSE)
    assert layer.mask.sum() == 4
    assert layer.made.sum() == 4


@pytest.mark.parametrize("recompute", ["always", "never"])
def test_writes_through_data_between_steps_stay(recompute):
    """No version shows them. The last steps have a new form, and are refused."""
    layer: Any = Holding(None, lambda layer, y: y * layer.scale)
    layer.register_buffer("scale", torch.ones(4))
    pipe = Pipeline([layer], 1, 2, recompute=recompute)
    for N in (4, 4, 6):
        pipe.train_step(torch.ones(N, 4), torch.ones(N, 4), MSE)
        layer.scale.data.mul_(0.5)
    for N in (6, 8):
        with pytest.raises(FloatingPointError):
            pipe.train_step(torch.full((N, 4), math.inf), torch.ones(N, 4), MSE)
        layer.scale.data.mul_(0.5)
    assert layer.scale.tolist() == [0.5**5] * 4


def test_a_tensor_does_not_pass_through_an_object_of_two_stages():
    how: Any = {"device": "cpu", "balance": "uniform", "stages_per_rank": 2}
    for work in (leave, leave_once):
        box = Box()
        layers = [Holding(box, work), Holding(box, take)]
        pipe = Pipeline(layers, 1, 2, schedule="interleaved-1f1b", **how)
        if work is leave:
            refused("^step 1: 'last' of an object that layers of two stages hold", steps, pipe)
        else:
            steps(pipe)


@pytest.mark.parametrize("what", ["weight", "another object"])
def test_state_that_begins_to_move_is_refused_in_the_step_in_which_it_does(what):
    pipe = pipeline(partial(Later, what), "always")
    for step in (1, 1):  # the refused step did not count
        words = rf"^step {step}: stage 0: its outputs are not the same .*recompute='never'$"
        refused(words, steps, pipe)
    steps(pipeline(partial(Later, what), "never"))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("rows", [1, 7, 3000])
def test_a_fingerprint_is_that_of_the_bits_and_their_places(rows, dtype):
    hot = nn.functional.one_hot(torch.arange(rows * 5) % 5, 5).to(dtype)
    (form, found), (form_again, again) = map(fingerprint, (hot, hot.clone()))
    assert form == form_again
    assert torch.equal(found, again)
    for other in (torch.cat([hot[:-1], 1 - hot[-1:]]), hot.roll(1, 0), hot.roll(1, 1)):
        assert not torch.equal(fingerprint(other)[1], found)
    assert fingerprint(hot.T)[0] != form


def test_a_layer_that_never_does_the_same_is_refused():
    numbers = count()

    def grow(layer, y):
        setattr(layer, f"attribute{next(numbers)}", 1)
        return y

    words = r"^step 0: a layer changes something else each time .*recompute='never'$"
    refused(words, steps, pipeline(partial(Holding, None, grow), "always"))


def test_hash_depends_on_every_number_and_is_stable():
    base = rng.hashed(1, 2, 3, 4)
    assert base == rng.hashed(1, 2, 3, 4) < 2**32
    others = ((0, 2, 3, 4), (1, 0, 3, 4), (1, 2, 0, 4), (1, 2, 3, 0))
    assert len({base, *(rng.hashed(*numbers) for numbers in others)}) == 5
