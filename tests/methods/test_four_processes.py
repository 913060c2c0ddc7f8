"""Replicas, sharded and divided methods in four processes, held against one process."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer

from repro.gpipe import Pipeline, PipelineConfig, Weighted, launch
from repro.gpipe.tree import split
from repro.methods import make
from repro.methods.counted import count
from repro.methods.divided import refuse_indivisible
from repro.methods.method import Setup
from repro.models import Model, build

pytestmark = pytest.mark.slow
N = 9  # neither replicas nor micro-batches get equally many examples
# Without dropout, since each method draws other random numbers.
SIZES = {"L": 2, "d": 16, "H": 32, "heads": 4, "V": 64, "T": 8, "dropout": 0.0}
TRANSLATION = {"L": 1, "d": 16, "H": 24, "A": 2, "head_dim": 8, "V": 32, "S": 12, "T": 13}
TRANSLATION |= {"dropout": 0.0}
# Weights that take much more memory than activations, and can be divided.
WIDE = {"L": 2, "d": 128, "H": 512, "heads": 4, "V": 16, "T": 1}
# The loss of "translation" weighs micro-batches by their tokens.
MODELS = {
    "transformer": partial(build, "transformer", **SIZES),
    "translation": partial(build, "translation", **TRANSLATION),
    "dropping": partial(build, "transformer", **SIZES | {"dropout": 0.5}),
}
SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
Config = partial(PipelineConfig, balance="uniform")
OF_TORCH = {
    "ddp": Config(1, 2, replicas=4, recompute="never"),
    "fsdp": Config(1, 2, replicas=4, recompute="never"),
    "tensor": Config(1, 4, recompute="never"),
}
TRAINED = [(name, model) for name in OF_TORCH for model in ("transformer", "translation")]
TRAINED.remove(("tensor", "translation"))  # which has no plan of how it is divided


def everything(folder: Path) -> dict[Any, Any]:
    """All that the tests look at, on this process of four."""
    results: dict[Any, Any] = {case: trained(*case) for case in TRAINED}
    results["peaks"] = {name: peak_of(name) for name in OF_TORCH}
    results["dropping"] = trained("tensor", "dropping")["losses"]
    for sharded in (False, True):
        results["sharded" if sharded else "whole"] = replicated(sharded, folder / str(sharded))
    return results


def prepared(name: str, model: Model) -> tuple[Any, Any, Any]:
    """A method of torch's, and the mini-batch of this process's replica."""
    config = OF_TORCH[name]
    replica = dist.get_rank() if config.replicas > 1 else 0
    inputs, targets = (split(t, config.replicas)[replica] for t in model.batch(N, 0))
    group: Any = dist.new_group(range(4))
    setup = Setup(model.layers, model.loss, config, inputs, torch.device("cpu"), SGD, group=group)
    return make(name, setup), inputs, targets


def trained(name: str, model: str) -> dict[str, Any]:
    """Losses of three steps, and the bytes of another one."""
    method, *data = prepared(name, MODELS[model]())
    results: dict[str, Any] = {"losses": [method.train_step(*data).loss for _ in range(3)]}
    results["sent"] = method.sent_bytes(*data)
    method.close()
    return results


def peak_of(name: str) -> list[int] | None:
    method, *data = prepared(name, build("transformer", **WIDE))
    for _ in range(2):  # after the first, DistributedDataParallel makes its buckets anew
        method.train_step(*data)
    return method.peak_bytes(*data)


def replicated(sharded: bool, folder: Path) -> dict[str, Any]:
    """K=2 stages of D=2 replicas: three steps, the last one also from a checkpoint."""
    model = MODELS["transformer"]()
    pairs = [dist.new_group([j, j + 2]) for j in range(2)]  # the replicas of each stage
    adam: Any = partial(torch.optim.Adam, lr=0.01)
    if sharded:
        group = pairs[dist.get_rank() % 2]
        adam = partial(
            ZeroRedundancyOptimizer, optimizer_class=torch.optim.Adam, process_group=group, lr=0.01
        )
    inputs, targets = (split(tree, 2)[dist.get_rank() // 2] for tree in model.batch(N, 0))
    pipes = [Pipeline(model.layers, 2, 2, replicas=2) for _ in range(2)]
    first, again = optimizers = [adam(pipe.parameters()) for pipe in pipes]
    data = inputs, targets, Weighted(model.loss, len)
    results: dict[str, Any] = {}
    results["losses"] = [pipes[0].train_step(*data, first).loss for _ in range(2)]
    pipes[0].save(folder, first)
    pipes[1].load(folder, again)
    for name, pipe, optimizer in zip(("in one go", "resumed"), pipes, optimizers, strict=True):
        results["losses"].append(pipe.train_step(*data, optimizer).loss)
        results[name] = {key: t.clone() for key, t in pipe.module.state_dict().items()}
        pipe.close()
    return results


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """What four processes did."""
    return launch(everything, tmp_path_factory.mktemp("checkpoint"), stages=4)


@pytest.mark.parametrize(("name", "model_name"), TRAINED)
def test_training_is_that_of_one_process(ran, name, model_name):
    model, config = MODELS[model_name](), OF_TORCH[name]
    pipe = Pipeline(model.layers, 1, config.micro_batches * config.replicas)
    optimizer = SGD(pipe.parameters())
    data = (*model.batch(N, 0), model.loss)
    losses = [pipe.train_step(*data, optimizer).loss for _ in range(3)]
    for process in ran:
        assert process[name, model_name]["losses"] == pytest.approx(losses, rel=1e-5)


def test_processes_with_parts_of_the_same_layers_drop_the_same_activations(ran):
    assert len({loss for process in ran for loss in process["dropping"]}) == 3


def test_sent_and_counted_bytes_are_those_of_rings(ran):
    activation = N * SIZES["T"] * SIZES["d"] * 4
    weights, share = parameter_bytes(build("transformer", **SIZES)), 3 / 4
    scalars = 2 * share * 2 * 8  # the mini-batch's weight and its loss
    expected = {
        "ddp": {"all-reduce": scalars + 2 * share * weights},
        # Weights are gathered for F and for B of each micro-batch.
        "fsdp": {
            "all-reduce": scalars,
            "all-gather": 2 * 2 * share * weights,
            "reduce-scatter": 2 * share * weights,
        },
        # Outputs of attention and feed-forward in F, and the gradients of their inputs in B.
        "tensor": {"all-reduce": 2 * share * SIZES["L"] * 4 * activation},
    }
    for name, counts in expected.items():
        for sent in ran[0][name, "transformer"]["sent"]:
            assert {operator: sent[operator] for operator in counts} == counts

    # What is counted, in one micro-batch of all examples, which sends as much as several.
    model = build("transformer", **SIZES)
    inputs, _ = model.batch(N, 0)
    assert (
        count("tensor", model.layers, inputs, 4, 1).sent == ran[0]["tensor", "transformer"]["sent"]
    )
    stages = count("repro", model.layers, inputs, 2, 1, balance=(2, 2)).sent
    assert stages == [{"activations": activation}, {"gradients": activation}]
    replicas = count("ddp", model.layers, inputs, 4, 1).sent
    assert replicas[0]["all-reduce"] == 2 * share * weights


def parameter_bytes(model: Model) -> int:
    layers: list[Any] = [layer() for layer in model.layers if callable(layer)]
    return sum(p.nbytes for layer in layers for p in layer.parameters())


def test_peak_memory_has_what_a_process_keeps(ran):
    """Weights, momentum and gradients: all of them, or a part of them and what is gathered."""
    peaks = {name: peaks[0] for name, peaks in ran[0]["peaks"].items()}
    kept = 3 * parameter_bytes(build("transformer", **WIDE))
    assert kept / 4 < peaks["tensor"] < 0.35 * kept
    assert kept / 4 < peaks["fsdp"] < kept < peaks["ddp"]


def test_sharded_state_changes_no_bit_also_over_a_checkpoint(ran):
    for process in ran:
        without, sharded = process["whole"], process["sharded"]
        assert sharded["losses"] == without["losses"]
        for key, weight in without["in one go"].items():
            assert torch.equal(sharded["in one go"][key], weight)
            assert torch.equal(sharded["resumed"][key], weight)


@pytest.mark.parametrize(
    ("name", "changed", "T", "words"),
    [
        ("amoebanet-d", {"image": 48}, 2, r"^tensor_parallel = 2: no layer of this model has"),
        ("transformer", {"heads": 2}, 3, r"^tensor_parallel = 3: the 2 heads of a Block .*of 2$"),
        ("transformer", {"heads": 3, "d": 18}, 3, r"the 32 outputs of expand of a Block"),
    ],
)
def test_what_cannot_be_divided_is_refused_in_one_line(name, changed, T, words):
    sizes = SIZES if name == "transformer" else {"L": 3, "D": 16, "num_classes": 10}
    with pytest.raises(ValueError, match=words):
        refuse_indivisible(build(name, **sizes | changed).layers, T)
