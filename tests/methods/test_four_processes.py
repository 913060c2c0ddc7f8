"""Replicas, sharded and divided methods in four processes, held against one process."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from repro.gpipe import Pipeline, PipelineConfig, launch
from repro.gpipe.tree import split
from repro.methods import make
from repro.methods.counted import count
from repro.methods.divided import refuse_indivisible
from repro.methods.method import Setup
from repro.models import Model, build

pytestmark = pytest.mark.slow
N = 9  # neither replicas nor micro-batches get equally many examples
SIZES = {"L": 2, "d": 16, "H": 32, "heads": 4, "V": 64, "T": 8}
TRANSLATION = {"L": 1, "d": 16, "H": 24, "A": 2, "head_dim": 8, "V": 32, "S": 12, "T": 13}
# Weights that take much more memory than activations, and can be divided.
WIDE = {"L": 2, "d": 128, "H": 512, "heads": 4, "V": 16, "T": 1}
# The loss of "translation" weighs micro-batches by their tokens.
MODELS = {
    "transformer": partial(build, "transformer", **SIZES),
    "translation": partial(build, "translation", **TRANSLATION),
}
ADAM, SGD = partial(torch.optim.Adam, lr=0.01), partial(torch.optim.SGD, lr=0.1, momentum=0.9)
Config = partial(PipelineConfig, balance="uniform")
OF_TORCH = {
    "ddp": Config(1, 2, replicas=4, checkpoint="never"),
    "fsdp": Config(1, 2, replicas=4, checkpoint="never"),
    "zero2": Config(1, 2, replicas=4, checkpoint="never"),
    "tensor": Config(1, 4, checkpoint="never"),
}
TRAINED = [(name, model) for name in OF_TORCH for model in MODELS]
TRAINED.remove(("tensor", "translation"))  # which has no plan of how it is divided
REPLICATED = Config(2, 2, replicas=2)


def everything(folder: Path) -> dict[Any, Any]:
    """All that the tests look at, on this process of four."""
    results: dict[Any, Any] = {case: trained(*case) for case in TRAINED}
    results["peaks"] = {name: peak_of(name) for name in OF_TORCH}
    results["replicated"] = trained_with_adam(zero=False, folder=folder / "replicated")
    results["zero1"] = trained_with_adam(zero=True, folder=folder / "zero1")
    return results


def group_of(config: PipelineConfig) -> Any:
    """The replicas of this process's stage or, without any, all processes."""
    K, D = config.stages, config.replicas
    members = [list(range(4))] if D == 1 else [[d * K + j for d in range(D)] for j in range(K)]
    return dist.new_subgroups_by_enumeration(members)[0]


def prepared(
    name: str, config: PipelineConfig, model: Model, group: Any, **more: Any
) -> tuple[Any, Any, Any]:
    """A method, and the mini-batch of this process's replica."""
    replica = dist.get_rank() // config.stages if config.replicas > 1 else 0
    inputs, targets = (split(t, config.replicas)[replica] for t in model.batch(N, 0))
    setup = Setup(
        model.layers, model.loss, config, inputs, torch.device("cpu"), group=group, **more
    )
    return make(name if name in OF_TORCH else "repro", setup), inputs, targets


def trained(name: str, model: str) -> dict[str, Any]:
    """Losses of three steps, the bytes of another one, and an evaluation after it."""
    config = OF_TORCH[name]
    method, *data = prepared(name, config, MODELS[model](), group_of(config), optimizer=SGD)
    results: dict[str, Any] = {"losses": [method.train_step(*data).loss for _ in range(3)]}
    results["sent"] = method.sent_bytes(*data)
    results["evaluated"] = method.evaluate(*data).loss
    method.close()
    return results


def peak_of(name: str) -> list[int] | None:
    config = OF_TORCH[name]
    model = build("transformer", **WIDE)
    method, *data = prepared(name, config, model, group_of(config), optimizer=SGD)
    for _ in range(2):  # after the first, DistributedDataParallel makes its buckets anew
        method.train_step(*data)
    return method.peak_bytes(*data)


def trained_with_adam(*, zero: bool, folder: Path) -> dict[str, Any]:
    """Two steps of K=2 stages of D=2 replicas, and a third one in one go and over a checkpoint."""
    model, group = build("transformer", **SIZES), group_of(REPLICATED)
    how: Any = {"group": group, "optimizer": ADAM, "zero": zero}
    method, *data = prepared("repro", REPLICATED, model, **how)
    again, *_ = prepared("repro", REPLICATED, model, **how)
    results: dict[str, Any] = {"losses": [method.train_step(*data).loss for _ in range(2)]}
    method._pipe.save(folder, method._optimizer)
    again._pipe.load(folder, again._optimizer)
    for name, each in {"in one go": method, "resumed": again}.items():
        results["losses"].append(each.train_step(*data).loss)
        results[name] = {key: t.clone() for key, t in each.module.state_dict().items()}
    results["peak"] = method.peak_bytes(*data)
    method.close()
    again.close()
    return results


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """What four processes did."""
    return launch(everything, tmp_path_factory.mktemp("checkpoint"), stages=4)


@pytest.mark.parametrize(("name", "model_name"), TRAINED)
def test_training_is_that_of_one_process(ran, name, model_name):
    """Every part of a stage drops the same, and losses can be compared between methods."""
    model, config = MODELS[model_name](), OF_TORCH[name]
    pipe = Pipeline(model.layers, 1, config.micro_batches * config.replicas)
    optimizer = SGD(pipe.parameters())
    data = (*model.batch(N, 0), model.loss)
    losses = [pipe.train_step(*data, optimizer).loss for _ in range(3)]
    pipe.train_step(*data, optimizer)  # they run one more step to count what they send
    evaluated = pipe.evaluate(*data).loss
    for process in ran:
        found = process[name, model_name]
        assert found["losses"] == pytest.approx(losses, rel=1e-5)
        assert found["evaluated"] == pytest.approx(evaluated, rel=1e-4)


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
        # They are gathered for F of the first micro-batch alone.
        "zero2": {"all-gather": share * weights, "reduce-scatter": 2 * share * weights},
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
    assert kept / 4 < peaks["fsdp"] < peaks["zero2"] < kept < peaks["ddp"]


def test_sharded_state_changes_no_bit_also_over_a_checkpoint(ran):
    for process in ran:
        without, sharded = process["replicated"], process["zero1"]
        assert sharded["losses"] == without["losses"]
        assert sum(sharded["peak"]) < sum(without["peak"])
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
