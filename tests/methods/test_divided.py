"""Pipelines whose stages are divided over processes, and whose optimizer state is (ZeRO-1)."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from whole import TRANSFORMER as SIZES
from whole import N, State, assert_of_unsplit, gradients

from repro.gpipe import Pipeline, PipelineConfig, launch
from repro.gpipe.core.microbatch import split
from repro.methods import make
from repro.methods.divided import refuse_indivisible
from repro.methods.method import Setup
from repro.models import Model, build

pytestmark = pytest.mark.slow
M = 4
ADAM = partial(torch.optim.Adam, lr=0.01)
Config = partial(PipelineConfig, balance="uniform")
CONFIGS = {
    "K=2, T=2": Config(2, M, tensor_parallel=2),
    "K=2, T=2, 1f1b": Config(2, M, schedule="1f1b", checkpoint="never", tensor_parallel=2),
    "K=1, T=2, D=2": Config(1, M // 2, replicas=2, tensor_parallel=2),
}
REPLICATED = Config(2, M // 2, replicas=2)


def model(dropout: float = 0.1) -> Model:
    return build("transformer", dropout=dropout, **SIZES)


def everything(folder: Path) -> dict[Any, Any]:
    """All that the tests look at, on this process of four."""
    results: dict[Any, Any] = {
        name: losses_and_gradients(config) for name, config in CONFIGS.items()
    }
    for zero in (False, True):
        results["zero", zero] = trained_with_adam(zero=zero)
    results["resumed"] = resumed(folder)
    return results


def own_group(members: list[list[int]]) -> Any:
    """The one of these process groups that this process is in; all processes make all of them."""
    groups = [dist.new_group(ranks) for ranks in members]
    rank = dist.get_rank()
    return next(group for group, ranks in zip(groups, members, strict=True) if rank in ranks)


def setup_of(config: PipelineConfig, group: Any, dropout: float = 0.1, **more: Any) -> Setup:
    layers, loss = model(dropout).layers, model(dropout).loss
    device = torch.device("cpu")
    return Setup(layers, loss, config, sample=None, device=device, group=group, **more)


def part_of_batch(config: PipelineConfig) -> tuple[Any, Any]:
    """The mini-batch of this process's replica."""
    replica = dist.get_rank() // (config.stages * config.tensor_parallel)
    inputs, targets = (split(t, config.replicas)[replica] for t in model().batch(N, 0))
    return inputs, targets


def losses_and_gradients(config: PipelineConfig) -> dict[str, Any]:
    """Gradients of a step without dropout; then losses with it, an evaluation and bytes."""
    K, T = config.stages, config.tensor_parallel
    parts = [
        [(d * T + t) * K + j for t in range(T)] for d in range(config.replicas) for j in range(K)
    ]
    group = own_group(parts)
    data = part_of_batch(config)
    quiet = make("repro", setup_of(config, group, dropout=0.0))
    loss = quiet.train_step(*data).loss
    results: dict[str, Any] = {"gradients": (loss, gradients(quiet.module))}
    quiet.close()
    method = make("repro", setup_of(config, group, optimizer=ADAM))
    results["losses"] = [method.train_step(*data).loss for _ in range(3)]
    results["evaluated"] = method.evaluate(*data).loss
    results["sent"] = method.sent_bytes(*data)
    method.close()
    return results


def trained_with_adam(*, zero: bool) -> dict[str, Any]:
    """K=2 stages of D=2 replicas after three steps of Adam, with and without ZeRO-1."""
    group = own_group([[0, 2], [1, 3]])
    method = make("repro", setup_of(REPLICATED, group, optimizer=ADAM, zero=zero))
    data = part_of_batch(REPLICATED)
    results: dict[str, Any] = {"losses": [method.train_step(*data).loss for _ in range(3)]}
    results["weights"] = {name: t.clone() for name, t in method.module.state_dict().items()}
    results["peak"] = method.peak_bytes(*data)
    method.close()
    return results


def resumed(folder: Path) -> list[State]:
    """Weights after two steps and one more, in one go and over a checkpoint, with ZeRO-1."""
    group = own_group([[0, 2], [1, 3]])
    step = (*part_of_batch(REPLICATED), model().loss)

    def pipeline() -> tuple[Pipeline, torch.optim.Optimizer]:
        pipe = Pipeline(model().layers, REPLICATED)
        optimizer: Any = ZeroRedundancyOptimizer(
            pipe.parameters(), optimizer_class=torch.optim.Adam, process_group=group, lr=0.01
        )
        return pipe, optimizer

    first, optimizer = pipeline()
    for _ in range(2):
        first.train_step(*step, optimizer)
    first.save(folder, optimizer)
    second, its_optimizer = pipeline()
    second.load(folder, its_optimizer)
    for pipe, its in ((first, optimizer), (second, its_optimizer)):
        pipe.train_step(*step, its)
    return [first.module.state_dict(), second.module.state_dict()]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """What four processes did."""
    return launch(everything, tmp_path_factory.mktemp("checkpoint"), stages=4)


def joined(parts, shape):
    """A whole gradient of its parts; where all processes have the whole one, the last."""
    if parts[-1].shape == shape:
        assert all(torch.equal(part, parts[0]) for part in parts)
        return parts[-1]
    dimension = next(n for n, size in enumerate(shape) if parts[0].shape[n] != size)
    return torch.cat(parts, dimension)


@pytest.mark.parametrize("name", CONFIGS)
def test_gradients_of_divided_stages_are_those_of_the_unsplit_model(ran, name):
    K, T = CONFIGS[name].stages, CONFIGS[name].tensor_parallel
    whole = {
        key: p.shape for n, layer in enumerate(model(0.0).layers) for key, p in named(n, layer)
    }
    for replica in range(CONFIGS[name].replicas):
        processes = [process[name]["gradients"] for process in ran[replica * T * K :][: T * K]]
        found = {
            key: joined([each[key] for _, each in processes if key in each], shape)
            for key, shape in whole.items()
        }
        assert_of_unsplit(model(0.0), processes[0][0], found)


def named(n, layer):
    return [(f"{n}.{key}", p) for key, p in layer().named_parameters()]


@pytest.mark.parametrize("name", CONFIGS)
def test_training_with_dropout_is_that_of_one_process(ran, name):
    """Dropout is on whole activations, so every part drops the same."""
    pipe = Pipeline(model().layers, 1, M)
    optimizer = ADAM(pipe.parameters())
    data = (*model().batch(N, 0), model().loss)
    losses = [pipe.train_step(*data, optimizer).loss for _ in range(3)]
    evaluated = pipe.evaluate(*data).loss
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


def test_sharded_state_changes_no_bit_also_over_a_checkpoint(ran):
    for process in ran:
        without, sharded = process["zero", False], process["zero", True]
        assert sharded["losses"] == without["losses"]
        assert sum(sharded["peak"]) < sum(without["peak"])
        in_one_go, again = process["resumed"]
        for one, other in ((without["weights"], sharded["weights"]), (in_one_go, again)):
            assert all(torch.equal(weight, other[key]) for key, weight in one.items())


@pytest.mark.parametrize(
    ("name", "changed", "T", "words"),
    [
        ("amoebanet-d", {"image": 48}, 2, r"^tensor_parallel = 2: no layer of this model says"),
        ("transformer", {}, 3, r"^tensor_parallel = 3: the 2 heads of a Block .*of 2$"),
        ("transformer", {"heads": 3, "d": 18}, 3, r"the 32 outputs of expand of a Block"),
        ("transformer", {"attention_dropout": 0.1}, 2, r"2 with attention_dropout=0\.1: every"),
    ],
)
def test_what_cannot_be_divided_is_refused_in_one_line(name, changed, T, words):
    sizes = SIZES if name == "transformer" else {"L": 3, "D": 16, "num_classes": 10}
    with pytest.raises(ValueError, match=words):
        refuse_indivisible(build(name, **sizes | changed).layers, T)
