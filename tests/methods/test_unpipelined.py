"""Methods without a pipeline in two processes, held against one process."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from whole import TRANSFORMER as SIZES
from whole import N, assert_of_unsplit, gradients

from repro.gpipe import Pipeline, PipelineConfig, launch
from repro.gpipe.core.microbatch import split
from repro.methods import make
from repro.methods.method import Method, Setup
from repro.models import Model, build

pytestmark = pytest.mark.slow  # processes that import much
D, M = 2, 2  # replicas, and micro-batches of each
WIDTH = 128
TRANSLATION = {"L": 1, "d": 16, "H": 24, "A": 2, "head_dim": 8, "V": 32, "S": 12, "T": 13}
# Weights that take much more memory than activations, and can be divided.
WIDE = {"L": 2, "d": 128, "H": 512, "heads": 2, "V": 16, "T": 1}
SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
# Without dropout; the loss of "translation" weighs micro-batches by their tokens.
QUIET = {
    "transformer": partial(build, "transformer", dropout=0.0, **SIZES),
    "translation": partial(build, "translation", dropout=0.0, **TRANSLATION),
}
MODELS = {
    "ddp": ("transformer", "translation"),
    "fsdp": ("transformer", "translation"),
    "tensor": ("transformer",),
}


def method_of(library: str, model: Model, **changed: Any) -> tuple[Method, Any, Any]:
    """A method of two processes, and this one's part of the mini-batch."""
    checkpoint = changed.pop("checkpoint", "never")
    inputs, targets = model.batch(N, 0)
    config = PipelineConfig(1, D * M, tensor_parallel=2, checkpoint=checkpoint)
    if library != "tensor":
        config = PipelineConfig(1, M, replicas=D, checkpoint=checkpoint)
        inputs, targets = (split(tree, D)[dist.get_rank()] for tree in (inputs, targets))
    group, device = dist.group.WORLD, torch.device("cpu")
    setup = Setup(
        model.layers, model.loss, config, sample=inputs, device=device, group=group, **changed
    )
    return make(library, setup), inputs, targets


def everything() -> dict[str, dict[Any, Any]]:
    return {library: of_library(library) for library in MODELS}


def of_library(library: str) -> dict[Any, Any]:
    """All that the tests of a method look at, on this process."""
    results: dict[Any, Any] = {}
    for name in MODELS[library]:
        for checkpoint in ("never", "always"):
            method, *data = method_of(library, QUIET[name](), checkpoint=checkpoint)
            loss = method.train_step(*data).loss
            results[name, checkpoint] = loss, gradients(method.module)
            results[name, "evaluated"] = method.evaluate(*data).loss
    method, *data = method_of(library, build("transformer", **SIZES), optimizer=SGD)
    results["losses"] = [method.train_step(*data).loss for _ in range(3)]
    results["sent"] = method.sent_bytes(*data)
    model = build("transformer", **WIDE) if library == "tensor" else wide()
    method, *data = method_of(library, model, optimizer=SGD)
    for _ in range(2):  # after the first, DistributedDataParallel makes its buckets anew
        method.train_step(*data)
    results["peak"] = method.peak_bytes(*data)
    return results


def wide() -> Model:
    """Eight layers whose weights take much more memory than their activations."""
    layers: list[Any] = [partial(nn.Linear, WIDTH, WIDTH)] * 8
    ones = lambda N, seed: (torch.ones(N, WIDTH), torch.ones(N, WIDTH))  # noqa: E731
    return Model("wide", layers, ones, nn.functional.mse_loss, "examples/s")


@pytest.fixture(scope="module")
def processes():
    return launch(everything, stages=2)


def parameter_bytes(model: Model) -> int:
    layers: list[Any] = [layer() for layer in model.layers if callable(layer)]
    return sum(p.nbytes for layer in layers for p in layer.parameters())


@pytest.mark.parametrize("library", MODELS)
def test_gradients_are_those_of_the_mini_batch_mean(processes, library):
    """Replicas of five and four examples, and a mean over tokens that are not padding."""
    for name in MODELS[library]:
        for process in processes:
            for checkpoint in ("never", "always"):
                loss, found = process[library][name, checkpoint]
                assert_of_unsplit(QUIET[name](), loss, found)
                # Without dropout and an update, an evaluation has the same loss.
                assert process[library][name, "evaluated"] == pytest.approx(loss, rel=1e-6)


def test_dropout_is_that_of_our_pipeline(processes):
    """So that losses after equal steps can be compared between methods."""
    model = build("transformer", **SIZES)
    pipe = Pipeline(model.layers, 1, D * M)
    step = partial(pipe.train_step, *model.batch(N, 0), model.loss, SGD(pipe.parameters()))
    expected = [step().loss for _ in range(3)]
    for process in processes:
        for library in MODELS:
            assert process[library]["losses"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("library", MODELS)
def test_sent_bytes_are_those_of_a_ring(processes, library):
    weights, share = parameter_bytes(build("transformer", **SIZES)), (D - 1) / D
    scalars = 2 * share * 2 * 8  # the mini-batch's weight and its loss
    # Outputs of attention and feed-forward in F, and the gradients of their inputs in B.
    activations = SIZES["L"] * 4 * N * SIZES["T"] * SIZES["d"] * 4
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
    for process in processes:
        for sent in process[library]["sent"]:
            assert {operator: sent[operator] for operator in expected} == expected


def test_peak_memory_has_what_a_process_keeps(processes):
    """Weights, momentum and gradients: all of them, or half of them and some layers whole."""
    peaks = {library: processes[0][library]["peak"][0] for library in MODELS}
    # Besides the halves of the matrices there are whole embeddings, norms and a few biases.
    weights = parameter_bytes(build("transformer", **WIDE))
    assert 3 * weights / 2 < peaks["tensor"] < 3 * weights * 0.6
    layer = (WIDTH + 1) * WIDTH * 4
    kept = 3 * 8 * layer
    assert kept < peaks["ddp"] < kept + 2 * layer
    # The layer before is gathered meanwhile, and gathering and summing need room: 4.2 layers. Where
    # processes wait for a core, the gradients of the layer after are still being summed; torch
    # waits for these before it sums others.
    assert kept / D < peaks["fsdp"] < kept / D + 6 * layer
