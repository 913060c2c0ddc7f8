"""The methods that are called exact have the bits of one device, at equal M.

GPipe's backwards come in the reverse order of the forwards, and those of the others in the same
order. Gradients are added in that order, so one device must have it too.
"""

from dataclasses import replace

import pytest
import torch
from exact_methods import EXACT, on_two, settings, trained

from repro.gpipe import launch

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ran():
    """What two processes did."""
    return launch(on_two, stages=2)


def test_what_is_called_exact():
    assert EXACT == ["single", "naive", "gpipe", "1f1b", "interleaved"]


@pytest.mark.parametrize("name", [name for name in EXACT if name != "single"])
def test_losses_and_weights_have_the_bits_of_one_device(ran, name):
    schedule = "gpipe" if name == "gpipe" else "1f1b"
    expected = trained(replace(settings("single"), schedule=schedule))
    weights = ran[0][name]["weights"] | ran[1][name]["weights"]
    assert ran[0][name]["losses"] == expected["losses"]
    assert weights.keys() == expected["weights"].keys()
    for key, weight in expected["weights"].items():
        assert torch.equal(weights[key], weight), key
