"""DistributedDataParallel and fully_shard in two processes, held against one process."""

from functools import partial

import pytest
import torch
from whole_models import TRANSFORMER as SIZES
from whole_models import WIDTH, M, batch, everything, models, unsplit

from repro.gpipe import Pipeline, launch
from repro.gpipe.core.microbatch import gather
from repro.models import build

LIBRARIES = ("ddp", "fsdp")
D = 2


@pytest.fixture(scope="module", params=LIBRARIES)
def ran(request):
    """What both processes of a library did."""
    return request.param, launch(everything, request.param, stages=D)


def parameter_bytes():
    layers = [layer() for layer in build("transformer", **SIZES).layers]
    return sum(p.nbytes for layer in layers for p in layer.parameters())


@pytest.mark.parametrize("checkpoint", ["never", "always"])
@pytest.mark.parametrize("name", ["transformer", "translation"])
def test_gradients_are_those_of_the_mini_batch_mean(ran, name, checkpoint):
    """Replicas of five and four examples, and a mean over tokens that are not padding."""
    loss, expected = unsplit(models()[name])
    for process in ran[1]:
        actual_loss, gradients = process[name, checkpoint]
        assert actual_loss == pytest.approx(loss, rel=1e-5)
        assert gradients.keys() == expected.keys()
        largest = max(gradient.abs().max().item() for gradient in expected.values())
        for key, gradient in expected.items():
            assert (gradients[key] - gradient).abs().max().item() <= 1e-5 * largest, key


@pytest.mark.parametrize("name", ["transformer", "translation"])
def test_an_evaluation_gives_each_replicas_outputs_and_the_loss_of_all(ran, name):
    model = models()[name]
    inputs, targets = batch(model)
    pipe = Pipeline(model.layers, 1, D * M)
    expected = pipe.evaluate(inputs, targets, model.loss)
    results = [process[name, "evaluated"] for process in ran[1]]
    assert [result.loss for result in results] == pytest.approx([expected.loss] * D, rel=1e-6)
    torch.testing.assert_close(gather([result.outputs for result in results]), expected.outputs)


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
    for sent in processes[0]["sent"]:
        assert sent["all-reduce"] == scalars + (2 * share * weights if library == "ddp" else 0)
        if library == "fsdp":  # gathered for F and for B of each micro-batch
            assert sent["all-gather"] == 2 * M * share * weights
            assert sent["reduce-scatter"] == M * share * weights
    assert processes[0]["sent"] == processes[1]["sent"]


def test_peak_memory_has_what_a_replica_keeps(ran):
    """Weights, momentum and gradients: all of them, or half of them and some layers whole."""
    library, processes = ran
    (peak,) = processes[0]["peak"]
    layer = (WIDTH + 1) * WIDTH * 4
    kept = 3 * 8 * layer
    if library == "ddp":
        assert kept < peak < kept + 2 * layer
    else:
        # The layer before is gathered meanwhile, and gathering and summing need room.
        assert kept / D < peak < kept / D + 5 * layer
