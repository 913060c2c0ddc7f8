"""Methods without a pipeline in two processes, held against one process."""

from functools import partial

import pytest
import torch
from whole_models import MODELS, WIDE, WIDTH, D, M, batch, everything, models, unsplit
from whole_models import TRANSFORMER as SIZES

from repro.gpipe import Pipeline, launch
from repro.models import build

pytestmark = pytest.mark.slow  # processes that import much


@pytest.fixture(scope="module", params=MODELS)
def ran(request):
    """What both processes of a library did."""
    return request.param, launch(everything, request.param, stages=2)


def parameter_bytes():
    layers = [layer() for layer in build("transformer", **SIZES).layers]
    return sum(p.nbytes for layer in layers for p in layer.parameters())


@pytest.mark.parametrize("checkpoint", ["never", "always"])
def test_gradients_are_those_of_the_mini_batch_mean(ran, checkpoint):
    """Replicas of five and four examples, and a mean over tokens that are not padding."""
    library, processes = ran
    for name in MODELS[library]:
        for process in processes:
            assert_gradients_of_unsplit(models()[name], *process[name, checkpoint])
            # Without dropout and an update, an evaluation has the same loss.
            expected = process[name, checkpoint][0]
            assert process[name, "evaluated"] == pytest.approx(expected, rel=1e-6)


def assert_gradients_of_unsplit(model, actual_loss, gradients):
    loss, expected = unsplit(model)
    assert actual_loss == pytest.approx(loss, rel=1e-5)
    assert gradients.keys() == expected.keys()
    largest = max(gradient.abs().max().item() for gradient in expected.values())
    for key, gradient in expected.items():
        assert (gradients[key] - gradient).abs().max().item() <= 1e-5 * largest, key


def test_dropout_is_that_of_our_pipeline(ran):
    """So that losses after equal steps can be compared between methods."""
    model = build("transformer", **SIZES)
    pipe = Pipeline(model.layers, 1, D * M)
    optimizer = torch.optim.SGD(pipe.parameters(), lr=0.1, momentum=0.9)
    step = partial(pipe.train_step, *batch(model), model.loss, optimizer)
    expected = [step().loss for _ in range(3)]
    for process in ran[1]:
        assert process["losses"] == pytest.approx(expected, rel=1e-6)


def test_sent_bytes_are_those_of_a_ring(ran):
    library, processes = ran
    weights, share = parameter_bytes(), (D - 1) / D
    scalars = 2 * share * 2 * 8  # the mini-batch's weight and its loss
    # Outputs of attention and feed-forward in F, and the gradients of their inputs in B.
    activations = SIZES["L"] * 4 * 9 * SIZES["T"] * SIZES["d"] * 4
    expected = {
        "ddp": {"all-reduce": scalars + 2 * share * weights},
        # Weights are gathered for F and for B of each micro-batch.
        "fsdp": {
            "all-reduce": scalars,
            "all-gather": 2 * M * share * weights,
            "reduce-scatter": M * share * weights,
        },
        "tensor": {"all-reduce": 2 * share * activations},
    }[library]
    for sent in processes[0]["sent"]:
        assert {operator: sent[operator] for operator in expected} == expected
    assert processes[0]["sent"] == processes[1]["sent"]


def test_peak_memory_has_what_a_replica_keeps(ran):
    """Weights, momentum and gradients: all of them, or half of them and some layers whole."""
    library, processes = ran
    (peak,) = processes[0]["peak"]
    if library == "tensor":
        weights = sum(
            p.nbytes for layer in build("transformer", **WIDE).layers for p in layer().parameters()
        )
        # Besides the halves of the matrices there are whole embeddings, norms and a few biases.
        assert 3 * weights / 2 < peak < 3 * weights * 0.6
        return
    layer = (WIDTH + 1) * WIDTH * 4
    kept = 3 * 8 * layer
    if library == "ddp":
        assert kept < peak < kept + 2 * layer
    else:
        # The layer before is gathered meanwhile, and gathering and summing need room: 4.2 layers.
        # Where processes wait for a core, the gradients of the layer after are still being summed;
        # torch waits for these before it sums others.
        assert kept / D < peak < kept / D + 6 * layer
