"""Counted memory against that of real steps, and against values known by hand."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import pytest
import torch
from torch import nn

from repro.costs.counter import Counter, Optimizer
from repro.costs.stage_memory import Messages, Ranks, StageMemory
from repro.gpipe import Pipeline, launch
from repro.gpipe.core import memory
from repro.gpipe.core.config import PipelineConfig
from repro.gpipe.core.memory import LiveBytes
from repro.gpipe.partition.balance import choose
from repro.gpipe.schedule.actions import COMPUTE, Schedule, Work
from repro.gpipe.schedule.kinds import SCHEDULES
from repro.gpipe.tree import flatten
from repro.models import Model, build

MODELS = {
    "transformer": ({"L": 6, "d": 64, "H": 128, "heads": 4, "V": 128, "T": 32}, 8),
    "amoebanet-d": ({"L": 3, "D": 16, "image": 32, "num_classes": 10}, 16),
}
CASES = [  # model, schedule, M, recomputation
    ("transformer", "interleaved-1f1b", 4, "except_last"),
    ("transformer", "gpipe", 2, "never"),
    ("transformer", "1f1b", 4, "never"),
    ("transformer", "zb-h1", 4, "never"),
    ("transformer", "interleaved-zb", 4, "never"),
    ("transformer", "zb", 8, "never"),
    ("amoebanet-d", "gpipe", 2, "always"),
    ("amoebanet-d", "1f1b", 8, "never"),
    ("amoebanet-d", "zb-h1", 8, "never"),
    ("amoebanet-d", "zb", 8, "always"),
]
SHARED = Messages(posted=0, sending=0)  # messages in shared memory, copied at once
GPU_MODELS = {
    "transformer": ({"L": 8, "d": 1024, "H": 4096, "heads": 16, "V": 32000, "T": 512}, 16),
    "amoebanet-d": ({"L": 6, "D": 128, "image": 224}, 32),
}


def memory_of_ranks(
    layers: Sequence[Any],
    loss: Any,
    data: tuple[Any, Any],
    config: PipelineConfig,
    optimizer: Optimizer | None,
    *messages: Messages,
    device: str = "cpu",
    schedule: Schedule | None = None,
) -> list[list[StageMemory]]:
    """For each kind of messages, of stages of as many layers."""
    counter = Counter(layers, loss, optimizer, device=device)
    no_profile: Any = None
    counts = choose(layers, config, no_profile).counts
    schedule = schedule or config.make_schedule()
    return [Ranks(counter, schedule, *data, each).peaks(counts) for each in messages]


def prepared(
    name: str, schedule: str, M: int, recompute: str
) -> tuple[Model, tuple[Any, Any], PipelineConfig]:
    """A model, a mini-batch, and two ranks."""
    args, N = MODELS[name]
    held = 2 if SCHEDULES[schedule].interleaved else 1
    config = PipelineConfig(
        2, M, recompute=recompute, balance="uniform", schedule=schedule, stages_per_rank=held
    )
    model = build(name, **args)
    return model, model.batch(N, 0), config


def measured() -> list[tuple[int, list[Work]]]:
    """For each case the bytes of tensors at this rank's peak, and what it has done."""
    found = list[tuple[int, list[Work]]]()
    for case in CASES:
        model, (inputs, targets), config = prepared(*case)
        pipe = Pipeline(model.layers, **config.arguments, device="cpu", without=["LossCheck"])
        optimizer = torch.optim.RMSprop(pipe.parameters())
        # State is begun in a first step.
        read = inputs if pipe.is_first else targets
        for trace in (False, True):
            with LiveBytes(chain(memory.at_rest(pipe.module, optimizer), flatten(read)[0])) as live:
                pipe.train_step(inputs, targets, model.loss, optimizer, trace=trace)
        spans = pipe.engine.recorder.finish()
        done: list[Work] = [span[:3] for span in spans if span.kind in COMPUTE]
        found.append((live.peak, done))
        pipe.close()
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_counted_is_what_a_step_has_in_memory():
    """Within 2 % per rank, of all tensors.

    Between no message and two that wait, by how far ahead of this rank the neighbour is.
    """
    ranks = launch(measured, stages=2)
    for n, case in enumerate(CASES):
        model, data, config = prepared(*case)
        peaks, orders = zip(*(of_rank[n] for of_rank in ranks), strict=True)
        schedule = config.make_schedule()
        given = model.layers, model.loss, data, config, torch.optim.RMSprop
        kinds = SHARED, Messages(posted=2, sending=0)
        done = replace(schedule, orders=orders, limit=None)
        least, most = memory_of_ranks(*given, *kinds, schedule=done)
        (allowed,) = memory_of_ranks(*given, kinds[1], schedule=schedule)
        for j, live in enumerate(peaks):
            assert 0.98 * least[j].total <= live <= 1.02 * most[j].total, (case, j)
            assert most[j].total <= 1.01 * allowed[j].total, (case, j)


@pytest.mark.gpu
@pytest.mark.parametrize("name", GPU_MODELS)
@pytest.mark.parametrize(
    ("M", "recompute"), [(1, "never"), (4, "always"), (8, "except_last"), (8, "never")]
)
def test_counted_is_what_the_gpu_allocates(name: str, M: int, recompute: str):
    """Within 1 % of the bytes of tensors, counted on the GPU's operators; kernels take more."""
    args, N = GPU_MODELS[name]
    model = build(name, **args)
    data = model.batch(N, 0)
    optimizer = partial(torch.optim.RMSprop, foreach=False)
    config = PipelineConfig(1, M, recompute=recompute, balance="uniform")
    pipe = Pipeline(model.layers, **config.arguments, device="cuda")
    own = optimizer(pipe.parameters())
    step = partial(pipe.train_step, *data, model.loss, own)
    step()
    on_gpu = memory.peak_memory(step, pipe.device, ())
    between = chain(memory.at_rest(pipe.module, own), flatten(data)[0])
    with LiveBytes(between, device="cuda") as meter:
        step()
    pipe.close()
    given = model.layers, model.loss, data, config, optimizer
    ((stage,),) = memory_of_ranks(*given, Messages(0, 0), device="cuda")
    assert stage.total == pytest.approx(meter.peak, rel=0.01)
    assert on_gpu >= 0.99 * meter.peak


def linear(width: int = 8) -> nn.Module:
    return nn.Linear(width, width)


def counted(layers: list[Any] | None = None, **options: Any) -> list[StageMemory]:
    config = PipelineConfig(**{"stages": 1, "micro_batches": 1, **options})
    data = torch.zeros(16, 8), torch.zeros(16, 8)
    loss, optimizer = nn.functional.mse_loss, torch.optim.RMSprop
    given = layers or [linear] * 4, loss, data, config, optimizer
    (stages,) = memory_of_ranks(*given, Messages())
    return stages


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


def test_half_as_large_elements_leave_the_optimizer_a_float32_copy_of_the_parameters():
    (stage,) = counted(micro_batches=16)
    full, half = stage.by_kind, stage.stored_in(2).by_kind
    assert half["optimizer"] == full["optimizer"] + full["parameters"]
    for kind in full.keys() - {"optimizer"}:
        assert half[kind] == full[kind] / 2
    assert stage.stored_in(4) == stage


def test_a_stage_in_the_middle_keeps_its_inputs_until_b_or_w():
    """1F1B keeps fewer than GPipe; with ZB-H1 each stage keeps K, and if it does what is ready 2K.

    The first layer is a linear one, so W needs the inputs.
    """
    one = 4 * 8  # bytes of an example
    kept = {}
    modes = {"gpipe": "always", "1f1b": "always", "zb-h1": "never", "zb": "never"}
    for name, recompute in modes.items():
        stages = counted(stages=4, micro_batches=16, schedule=name, recompute=recompute)
        kept[name] = [stages[j].by_kind["boundary"] for j in (1, 2)]
    number = {name: [size // one for size in sizes] for name, sizes in kept.items()}
    # 15 in the second B
    assert number == {"gpipe": [15, 15], "1f1b": [3, 2], "zb-h1": [4, 4], "zb": [8, 8]}


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
        ([partial(nn.LSTM, 8, 8)], r"layers\[0\] \(LSTM\) cannot be counted: .*rnn_layer on fake"),
        ([Needs], r"layers\[0\] \(Needs\) cannot be built without memory: .*file second line"),
    ],
)
def test_what_cannot_be_counted_is_one_line_that_names_the_layer(layers: list, words: str):
    with pytest.raises(ValueError, match=words) as caught:
        counted(layers=layers)
    assert "\n" not in str(caught.value)
