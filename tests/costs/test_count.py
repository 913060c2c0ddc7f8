"""Counted memory against the CPU allocator's measurements, and against values known by hand."""

from functools import partial
from typing import Any

import pytest
import torch
from counted import memory_of_ranks
from torch import nn

from repro.costs.counter import Counter
from repro.costs.stage_memory import Messages, StageMemory, micro_batch
from repro.gpipe import Pipeline, launch
from repro.gpipe.core.config import PipelineConfig
from repro.gpipe.core.microbatch import flatten
from repro.harness.allocator import measure
from repro.models import build

MODELS = {
    "transformer": ({"L": 6, "d": 64, "H": 128, "heads": 4, "V": 128, "T": 32}, 8),
    "amoebanet-d": ({"L": 3, "D": 16, "image": 32, "num_classes": 10}, 8),
}
CASES = [  # model, stages on each rank, M, recomputation
    ("transformer", 1, 1, "always"),
    ("transformer", 2, 4, "except_last"),
    ("transformer", 1, 8, "never"),
    ("amoebanet-d", 1, 4, "always"),
    ("amoebanet-d", 2, 1, "never"),
]
SHARED = Messages(posted=0, sending=0)  # messages in shared memory, copied at once


def settings(held: int, M: int, checkpoint: str) -> PipelineConfig:
    """Stages of as many layers; `held` on each rank."""
    return PipelineConfig(
        2,
        M,
        checkpoint=checkpoint,
        balance="uniform",
        schedule="interleaved-1f1b" if held > 1 else "gpipe",
        stages_per_rank=held,
    )


def measured() -> list[tuple[int, int]]:
    """For each case, bytes at this rank's peak: of tensors, and with workspaces of kernels."""
    found = []
    for name, held, M, checkpoint in CASES:
        args, N = MODELS[name]
        model = build(name, **args)
        inputs, targets = model.batch(N, 0)
        config = settings(held, M, checkpoint)
        pipe = Pipeline(model.layers, config, device="cpu")
        optimizer = torch.optim.RMSprop(pipe.parameters())
        step = partial(pipe.train_step, inputs, targets, model.loss, optimizer)
        step()  # in which gradients are made and state is begun
        resident = [
            *pipe.module.parameters(),
            *pipe.module.buffers(),
            *flatten([*optimizer.state.values()])[0],
        ]
        resident += [inputs] * (pipe.rank == 0) + [targets] * pipe.is_last
        before = sum(tensor.nbytes for tensor in resident)
        peak = measure(step)
        found.append((before + peak.visible, before + peak.everything))
        pipe.close()
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_counted_is_what_the_allocator_says():
    """Within 2 % per rank, of all tensors; workspaces of kernels are not negative."""
    ranks = launch(measured, stages=2)
    for n, (name, held, M, checkpoint) in enumerate(CASES):
        args, N = MODELS[name]
        model = build(name, **args)
        data, config = model.batch(N, 0), settings(held, M, checkpoint)
        stages = memory_of_ranks(
            model.layers, model.loss, data, config, torch.optim.RMSprop, SHARED
        )
        for j, stage in enumerate(stages):
            visible, everything = ranks[j][n]
            assert stage.total == pytest.approx(visible, rel=0.02), (name, M, checkpoint, j)
            assert everything >= visible


def linear(width: int = 8) -> nn.Module:
    return nn.Linear(width, width)


def counted(layers: list[Any] | None = None, **options: Any) -> list[StageMemory]:
    config = PipelineConfig(**{"stages": 1, "micro_batches": 1, **options})
    data = torch.zeros(16, 8), torch.zeros(16, 8)
    loss, optimizer = nn.functional.mse_loss, torch.optim.RMSprop
    return memory_of_ranks(layers or [linear] * 4, loss, data, config, optimizer, Messages())


def test_what_stays_is_known_by_hand():
    """A linear layer of 8 x 8 has 72 parameters; RMSprop's state as many, and two step counts."""
    (stage,) = counted(micro_batches=16)
    kinds = stage.by_kind
    assert stage.at == "B14"  # the second one, when all gradients are there
    assert kinds["parameters"] == kinds["gradients"] == 4 * 4 * 72
    assert kinds["optimizer"] == 4 * (4 * 72 + 2 * 4)
    assert kinds["boundary"] == 2 * 4 * 16 * 8  # the mini-batch: inputs and targets
    assert kinds["buffers"] == 0
    assert sum(kinds.values()) == stage.total


def test_operations_are_known_by_hand():
    counter = Counter([linear] * 4, nn.functional.mse_loss)
    layer = counter.layer(1, micro_batch(torch.zeros(16, 8), 4))
    assert counter.resident(1).count == 72
    assert sum(op.flops for op in layer.ops) == 2 * 4 * 8 * 8
    assert sum(op.flops for op in layer.ops_backward) == 2 * 2 * 4 * 8 * 8
    read, written = 4 * (4 * 8 + 8 * 8 + 8), 4 * 4 * 8  # inputs, weight and bias; outputs
    assert sum(op.read for op in layer.ops) == read
    assert sum(op.written for op in layer.ops) == written
    assert layer.result.content == 4 * 4 * 8


def test_a_stage_in_the_middle_keeps_its_inputs_and_1f1b_fewer_of_them():
    kept = {
        name: [s.by_kind["boundary"] for s in counted(stages=4, micro_batches=16, schedule=name)]
        for name in ("gpipe", "1f1b")
    }
    one = 4 * 8  # bytes of an example
    assert kept["gpipe"][1] == kept["gpipe"][2] == 15 * one  # in the second B
    assert [kept["1f1b"][1], kept["1f1b"][2]] == [3 * one, 2 * one]


def test_split_backwards_keep_inputs_until_w_and_at_most_k_of_them():
    """ZB-H1 with K=4: each stage keeps 4 micro-batches, 1F1B's first stage as many."""
    stages = counted(stages=4, micro_batches=16, schedule="zb-h1", checkpoint="never")
    one = 4 * 8  # bytes of an example
    assert [stages[j].by_kind["boundary"] for j in (1, 2)] == [4 * one, 4 * one]
    plain = counted(stages=4, micro_batches=16, schedule="1f1b", checkpoint="never")
    assert stages[0].total == plain[0].total


def test_equal_layers_are_built_and_traced_once():
    built = []

    def made() -> nn.Module:
        built.append(1)
        return nn.Linear(8, 8)

    layers = [made] * 50
    counter = Counter(layers, nn.functional.mse_loss)
    assert (len(built), len(set(counter.kinds))) == (1, 1)
    others = [
        nn.Linear(8, 8),
        nn.Linear(8, 8),
        nn.Linear(8, 8, bias=False),
        nn.Sequential(nn.Linear(8, 8)),
    ]
    assert Counter(others, nn.functional.mse_loss).kinds == (0, 0, 1, 2)
    active = [
        nn.LeakyReLU(0.1),
        nn.LeakyReLU(0.2),
        nn.LeakyReLU(0.1),
        nn.ReLU(inplace=True),
        nn.ReLU(),
    ]
    assert Counter(active, nn.functional.mse_loss).kinds == (0, 1, 0, 2, 3)


def test_ready_made_modules_and_those_on_the_meta_device_are_counted_and_left_alone():
    real = [nn.Linear(8, 8) for _ in range(4)]
    with torch.device("meta"):
        meta = [nn.Linear(8, 8) for _ in range(4)]
    before = [layer.weight.clone() for layer in real]
    assert counted(real) == counted(meta) == counted()
    assert all(torch.equal(layer.weight, old) for layer, old in zip(real, before, strict=True))
    assert all(layer.weight.grad is None for layer in real)


class Chooses(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[x > 0]


class Needs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        raise RuntimeError("no such file\nsecond line")


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ([linear, Chooses], r"layers\[1\] \(Chooses\) cannot be counted: .*shape"),
        ([linear, partial(linear, 9)], r"layers\[1\] \(linear\) cannot be counted: .*8"),
        (
            [Needs],
            r"layers\[0\] \(Needs\) cannot be built without memory: .*no such file second line",
        ),
    ],
)
def test_what_cannot_be_counted_is_one_line_that_names_the_layer(layers: list, words: str):
    with pytest.raises(ValueError, match=words) as caught:
        counted(layers=layers)
    assert "\n" not in str(caught.value)
