"""What is asked for, what was chosen, and the line that says so."""

import pytest
from torch import nn

from repro.gpipe.partition.balance import Cut, choose
from repro.gpipe.partition.layer_costs import LinkSpeed, Profile, check_balance

LAYERS = [
    lambda: nn.Linear(1_000_000, 1_000_000, bias=False),
    nn.ReLU,
    lambda: nn.Linear(2, 3),
    nn.ReLU(),
]


def profile(times, activations=None, link=None):
    """A made-up measurement: F is given, B takes twice that, and nothing is recomputed."""
    sizes = tuple(activations or [0] * (len(times) - 1))
    zeros, twice = (0.0,) * len(times), tuple(2 * t for t in times)
    return lambda: (
        Profile(tuple(times), zeros, twice, sizes, (0,) * len(sizes)),
        link or LinkSpeed(),
    )


ONE = profile([1.0])


def chosen(balance, stages=2, partitioner="smallest-largest", layers=LAYERS, measured=ONE):
    return choose(layers, stages, balance, partitioner, measured)


def test_parameters_are_counted_without_memory():
    cut = chosen("parameters")
    assert cut == Cut((2, 2), "by parameters (smallest-largest)", (1e12, 9), "parameters")
    assert str(cut) == (
        "2+2 layers by parameters (smallest-largest): 1, 9e-12 T parameters, predicted imbalance "
        "100.0 %"
    )


def test_time_counts_what_is_sent():
    """2+1 would be even without the ten bytes behind layer 1."""
    measured = profile(
        [1.0, 2.0, 3.0], [1, 10], LinkSpeed(latency=0.5, bytes_per_second=1.0, overlap=False)
    )
    cut = chosen("time", 2, layers=[nn.ReLU] * 3, measured=measured)
    assert cut.counts == (1, 2)
    assert cut.costs == (4.5, 15.0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"balance": "parameter"},
            r"balance='parameter': choose one of .* did you mean 'parameters'\?",
        ),
        (
            {"partitioner": "minimum-varience"},
            r"partitioner='minimum-varience': .* did you mean 'minimum-variance'\?",
        ),
        ({"stages": 5}, r"stages=5: the model has 4 layers"),
        ({"balance": lambda _a, _b: float("nan")}, r"cost of a stage of layers 0 to 0 is nan"),
        ({"balance": lambda _a, _b: -1}, r"cost of a stage of layers 0 to 0 is -1"),
        ({"balance": None}, r"balance=\[None\]: needs 2 positive numbers"),
    ],
)
def test_refused(change, words):
    with pytest.raises(ValueError, match=words) as caught:
        chosen(**({"balance": "uniform"} | change))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("balance", [[1, 2], [4], [0, 4], [5, -1], [True, 3], [2.0, 2], "22"])
def test_explicit_balance_is_checked(balance):
    with pytest.raises(ValueError, match=r"balance=\[.*needs 2 positive numbers that sum to"):
        check_balance(balance, 4, 2)
