"""Measured costs of layers: what is timed, what crosses, and what is left alone."""

import math
import time
from typing import Any

import pytest
import torch
from torch import nn

from repro.gpipe.partition.layer_costs import LinkSpeed, Profile
from repro.gpipe.partition.layer_profile import measure

CPU = torch.device("cpu")


class _Wait(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        time.sleep(seconds)
        return x.clone()

    @staticmethod
    def backward(ctx, *gradients):
        time.sleep(3 * ctx.seconds)
        return gradients[0], None


class Wait(nn.Module):
    """Waits in F, and three times as long in B."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def forward(self, x):
        return _Wait.apply(x, self.seconds)


class Fan(nn.Module):
    """Returns four tensors; one of them requires a gradient, if the input does."""

    def forward(self, x):
        return {
            "x": x,
            "ids": torch.zeros(5, dtype=torch.int64),
            "more": [x.detach(), x > 0],
            "name": "fan",
            "n": None,
        }


class Pick(nn.Module):
    def forward(self, value):
        return value["x"] + value["more"][0] * value["ids"].sum()


def test_f_r_and_b_apart():
    layers = [lambda: nn.Linear(4, 4), lambda: Wait(0.02), lambda: Wait(0.0)]
    profile = measure(layers, torch.zeros(2, 4), CPU, recompute=True, repeats=1)
    assert profile.recompute == profile.forward
    assert all(len(kind) == 3 for kind in (profile.forward, profile.backward))
    assert min(*profile.forward, *profile.backward) > 0
    assert profile.forward[1] >= 0.02
    assert profile.backward[1] >= 0.06
    assert (
        measure(layers, torch.zeros(2, 4), CPU, recompute=False, repeats=1).recompute == (0.0,) * 3
    )


def test_what_crosses():
    """Behind layer 1: [2, 4] floats. Behind 2: twice that, 5 int64, 8 booleans, 1 gradient."""
    frozen = nn.Embedding(5, 4).requires_grad_(False)
    layers = [frozen, nn.Linear(4, 4), Fan(), Pick(), nn.Linear(4, 1)]
    tokens = torch.zeros(2, dtype=torch.int64)
    with torch.no_grad():  # the user's mode does not matter
        profile = measure(layers, tokens, CPU, recompute=True, repeats=1)
    assert profile.activation_bytes == (32, 32, 32 + 40 + 32 + 8, 32)
    assert profile.gradient_bytes == (0, 32, 32, 32)


def test_an_error_names_the_layer():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
        measure([nn.ReLU(), nn.Linear(3, 3)], torch.zeros(2, 4), CPU, recompute=True)
    assert caught.value.__notes__ == ["layers[1]: Linear failed on the sample"]


def test_a_stage_pays_for_its_layers_and_for_what_it_sends():
    profile = Profile((1.0, 2.0, 4.0), (1.0, 2.0, 4.0), (2.0, 4.0, 8.0), (100, 300), (50, 0))
    free = profile.cost(LinkSpeed())
    assert [free(0, 1), free(1, 2), free(0, 3)] == [4.0, 8.0, 28.0]
    cost = profile.cost(LinkSpeed(latency=0.5, bytes_per_second=100.0, overlap=False))
    assert [cost(0, 3), cost(0, 1), cost(1, 2), cost(1, 3)] == [28.0, 5.5, 12.5, 25.0]
    assert cost(2, 3) == 16.0, "no gradient crosses, so no message does"
    # Where sending takes no time of its own, only a slower message counts.
    cost = profile.cost(LinkSpeed(latency=0.5, bytes_per_second=100.0))
    assert cost(0, 1) == 1.5 + 3.0, "F takes 1.0 and its message 1.5"
    assert [cost(1, 2), cost(1, 3)] == [3.5 + 6.0, 6.0 + 18.0]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"latency": -1.0}, r"^latency=-1\.0: must be a finite number of seconds; try 1e-5"),
        ({"latency": "1"}, "^latency='1'"),
        ({"latency": math.nan}, "^latency=nan"),
        ({"bytes_per_second": 0}, "^bytes_per_second=0: .*; try bytes_per_second=1e9"),
        ({"bytes_per_second": [1e9]}, r"^bytes_per_second=\[1"),
        ({"overlap": 1}, "^overlap=1: must be True or False; try overlap=True"),
    ],
)
def test_a_wrong_link_is_one_line(fields: dict[str, Any], words: str):
    with pytest.raises(ValueError, match=words) as caught:
        LinkSpeed(**fields)
    assert "\n" not in str(caught.value)
