"""Pipelines whose stages are divided over processes, and whose optimizer state is (ZeRO-1)."""

from functools import partial

import pytest
import torch
from stages_of_parts import ADAM, CONFIGS, SIZES, M, N, everything, model
from torch import nn

from repro.gpipe import Pipeline, launch
from repro.gpipe.core.layers import build as build_layer
from repro.methods.divided import refuse_indivisible
from repro.models import build

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """What four processes did."""
    return launch(everything, tmp_path_factory.mktemp("checkpoint"), stages=4)


def unsplit():
    """Loss and gradients of the mini-batch in plain torch."""
    device = torch.device("cpu")
    layers = [build_layer(layer, n, 0, device) for n, layer in enumerate(model(0.0).layers)]
    whole = nn.Sequential(*layers)
    inputs, targets = model().batch(N, 0)
    loss = model().loss(whole(inputs), targets)
    loss.backward()
    return loss.item(), {name: p.grad for name, p in whole.named_parameters() if p.grad is not None}


def joined(parts, shape):
    """A whole gradient of its parts; where all processes have the whole one, the last."""
    if parts[-1].shape == shape:
        assert all(torch.equal(part, parts[0]) for part in parts)
        return parts[-1]
    dimension = next(n for n, size in enumerate(shape) if parts[0].shape[n] != size)
    return torch.cat(parts, dimension)


@pytest.mark.parametrize("name", CONFIGS)
def test_gradients_of_divided_stages_are_those_of_the_unsplit_model(ran, name):
    loss, expected = unsplit()
    K, T = CONFIGS[name].stages, CONFIGS[name].tensor_parallel
    largest = max(gradient.abs().max().item() for gradient in expected.values())
    for process in ran:
        assert process[name]["gradients"][0] == pytest.approx(loss, rel=1e-5)
    for key, gradient in expected.items():
        for replica in range(CONFIGS[name].replicas):
            # The parts of the stage that has this parameter.
            chains = [ran[(replica * T + t) * K : (replica * T + t + 1) * K] for t in range(T)]
            parts = [
                process[name]["gradients"][1][key]
                for chain in chains
                for process in chain
                if key in process[name]["gradients"][1]
            ]
            whole = joined(parts, gradient.shape)
            assert (whole - gradient).abs().max().item() <= 1e-5 * largest, key


@pytest.mark.parametrize("name", CONFIGS)
def test_training_with_dropout_is_that_of_one_process(ran, name):
    """Dropout is on whole activations, so every part drops the same."""
    pipe = Pipeline(model().layers, 1, M)
    optimizer = ADAM(pipe.parameters())
    step = partial(pipe.train_step, *model().batch(N, 0), model().loss, optimizer)
    losses = [step().loss for _ in range(3)]
    evaluated = pipe.evaluate(*model().batch(N, 0), model().loss).loss
    for process in ran:
        assert process[name]["losses"] == pytest.approx(losses, rel=1e-5)
        assert process[name]["evaluated"] == pytest.approx(evaluated, rel=1e-4)


def test_sent_bytes_are_boundary_activations_and_all_reduces(ran):
    activation = N * SIZES["T"] * SIZES["d"] * 4
    # Two sums in each block's F, R and B; a ring of two sends each tensor once.
    expected = [
        {"activations": activation, "all-reduce": 6 * activation},
        {"gradients": activation, "all-reduce": 6 * activation},
    ]
    assert ran[0]["K=2, T=2"]["sent"] == expected * 2
    without_recompute = ran[0]["K=2, T=2, 1f1b"]["sent"]
    assert [sent["all-reduce"] for sent in without_recompute] == [4 * activation] * 4


def test_weights_with_sharded_state_are_the_same_bit_for_bit(ran):
    for process in ran:
        without, sharded = process["zero", False], process["zero", True]
        assert sharded["losses"] == without["losses"]
        assert sum(sharded["peak"]) < sum(without["peak"])
        for key, weight in without["weights"].items():
            assert torch.equal(sharded["weights"][key], weight), key


def test_sharded_state_goes_on_from_a_checkpoint_bit_for_bit(ran):
    for process in ran:
        for key, weight in process["resumed"]["in one go"].items():
            assert torch.equal(process["resumed"]["resumed"][key], weight), key


def test_what_cannot_be_divided_is_refused_in_one_line():
    small = {"L": 3, "D": 16, "image": 48, "num_classes": 10}
    with pytest.raises(ValueError, match=r"^tensor_parallel = 2: no layer of this model says.*$"):
        refuse_indivisible(build("amoebanet-d", **small).layers, 2)
    with pytest.raises(ValueError, match=r"^tensor_parallel = 3: the 2 heads of a Block .*of 2$"):
        refuse_indivisible(model().layers, 3)
    wide = build("transformer", **SIZES | {"heads": 3, "d": 18})
    with pytest.raises(ValueError, match=r"the 32 outputs of expand of a Block"):
        refuse_indivisible(wide.layers, 3)
    dropping = build("transformer", attention_dropout=0.1, **SIZES)
    with pytest.raises(ValueError, match=r"2 with attention_dropout=0\.1: every process would"):
        refuse_indivisible(dropping.layers, 2)
    refuse_indivisible(model().layers, 2)
