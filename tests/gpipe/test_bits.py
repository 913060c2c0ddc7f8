"""Weights, buffers and losses have the same bits for every K and checkpoint mode."""

import pytest
import torch
from bits import CASES, SEQUENCE_CASES, STAGES, everything, model
from torch import nn

from repro.gpipe import launch
from repro.gpipe.core.layers import build

# about 100 pipelines for each fixture: minutes where cores are shared
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def ran():
    """What four stage processes did, rank by rank."""
    return launch(everything, CASES, stages=4)


@pytest.fixture(scope="module")
def ran_on_sequences():
    """The same for recurrent and attention layers."""
    return launch(everything, SEQUENCE_CASES, stages=4)


def merged(ran, key, what):
    """The state of all stages."""
    return {name: value for rank in range(key[-1]) for name, value in ran[rank][key][what].items()}


@pytest.mark.parametrize("case", CASES)
def test_same_bits(ran, case):
    """Layers of every kind, random numbers, buffers that change."""
    assert_same_bits(ran, case)


@pytest.mark.parametrize("case", SEQUENCE_CASES)
def test_same_bits_of_sequence_models(ran_on_sequences, case):
    """Transposed views, other kernels without a graph, and unequal micro-batches."""
    assert_same_bits(ran_on_sequences, case)


def assert_same_bits(ran, case):
    """Held against one device without recompute, for every K."""
    name, optimizer, checkpoint, schedule = case
    reference = (name, optimizer, "never", schedule, 1)
    # A weight may hide the last bits of its gradient.
    expected = {what: merged(ran, reference, what) for what in ("initial", "gradients", "final")}
    trained = [
        key
        for key in expected["final"]
        if not torch.equal(expected["final"][key], expected["initial"][key])
    ]
    assert trained, "something was trained"
    for K in STAGES:
        key = (name, optimizer, checkpoint, schedule, K)
        assert ran[0][key]["losses"] == ran[0][reference]["losses"], K
        for what, tensors in expected.items():
            found = merged(ran, key, what)
            assert found.keys() == tensors.keys()
            different = [n for n, tensor in tensors.items() if not torch.equal(found[n], tensor)]
            assert not different, (K, what)


def test_losses_are_numbers_and_every_step_draws_afresh(ran):
    losses = ran[0]["drawing", "adam", "always", "gpipe", 1]["losses"]
    assert len(set(losses)) == len(losses)
    assert torch.tensor([run["losses"] for run in ran[0].values()]).isfinite().all()


@pytest.mark.parametrize("name", ["amoebanet", "transformer"])
def test_keys_are_those_of_the_unsplit_model(ran, name):
    layers, _, _ = model(name)
    whole = nn.Sequential(
        *(build(layer, n, 7, torch.device("cpu")) for n, layer in enumerate(layers))
    )
    state = merged(ran, (name, "momentum", "always", "gpipe", 4), "initial")
    assert state.keys() == whole.state_dict().keys()
    assert all(torch.equal(state[key], value) for key, value in whole.state_dict().items())


def test_an_output_that_nothing_heeds_leaves_its_parameters_alone(ran):
    """Weight decay would shrink them if zeros came back in place of no gradient."""
    key = ("awkward", "adam", "always", "gpipe", 4)
    before, after = merged(ran, key, "initial"), merged(ran, key, "final")
    assert torch.equal(before["1.ignored.weight"], after["1.ignored.weight"])
    assert not torch.equal(before["1.heeded.weight"], after["1.heeded.weight"])
