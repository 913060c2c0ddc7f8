"""Convolutions divided by channels and by rows, in three processes, held against one device."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from repro.gpipe import PipelineConfig, launch
from repro.gpipe.tree import split
from repro.methods import make
from repro.methods.convolutions import refuse_undivided
from repro.methods.counted import count
from repro.methods.method import Setup
from repro.models import Model, build

pytestmark = pytest.mark.slow
T, N, M = 3, 8, 2
# Images of 32 to 2 rows inside: uneven parts, and in the end fewer rows than processes.
MODEL: partial[Model] = partial(
    build, "amoebanet-d", L=3, D=12, image=65, num_classes=5, dropout=0.0
)
CONFIG = PipelineConfig(1, M, balance="uniform", checkpoint="never")
SGD = partial(torch.optim.SGD, lr=0.1)


def both() -> dict[tuple[str, str], Any]:
    """In double precision, since AmoebaNet amplifies rounding."""
    torch.set_default_dtype(torch.float64)
    group = dist.new_group(list(range(T)))
    return {
        (library, rule): of_library(library, group, replace(CONFIG, checkpoint=rule))
        for library in ("channels", "rows")
        for rule in ("never", "always")
    }


def data() -> tuple[Tensor, Tensor]:
    inputs, targets = MODEL().batch(N, 0)
    return inputs.double(), targets


def setup(**given: Any) -> Setup:
    model, (inputs, _) = MODEL(), data()
    sample = split(inputs, M)[0]
    given = {"config": CONFIG, "optimizer": SGD, **given}
    return Setup(model.layers, model.loss, sample=sample, device=torch.device("cpu"), **given)


def of_library(library: str, group: Any, config: PipelineConfig) -> dict[str, Any]:
    """Losses of two steps, running statistics after them, and the bytes of a third one."""
    method = make(library, setup(group=group, config=config))
    found: dict[str, Any] = {"losses": [method.train_step(*data()).loss for _ in range(2)]}
    if config.checkpoint == "never":  # recomputed ones move running statistics twice
        found["statistics"] = statistics(method.module)
        found["sent"] = method.sent_bytes(*data())
        found["buffer_bytes"] = sum(buffer.nbytes for buffer in method.module.buffers())
    method.close()
    return found


def statistics(module: nn.Module) -> list[float]:
    """The sum of each running mean and variance."""
    return [b.sum().item() for name, b in module.named_buffers() if "running" in name]


@pytest.fixture(scope="module")
def ran() -> list[dict[tuple[str, str], Any]]:
    return launch(both, stages=T)


@pytest.fixture(scope="module")
def whole() -> tuple[list[float], list[float]]:
    """Losses of two steps of one device, and running statistics after them."""
    torch.set_default_dtype(torch.float64)
    try:
        model, (inputs, targets) = MODEL(), data()
        module = setup().build_stage([len(model.layers)], 0)
        optimizer = SGD(module.parameters())
        losses = []
        for _ in range(2):
            optimizer.zero_grad()
            losses.append(0.0)
            for part, target in zip(split(inputs, M), split(targets, M), strict=True):
                loss = model.loss(module(part), target) / M
                loss.backward()
                losses[-1] += loss.item()
            optimizer.step()
        return losses, statistics(module)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("rule", ["never", "always"])
@pytest.mark.parametrize("library", ["channels", "rows"])
def test_a_training_is_that_of_one_device(ran, whole, library, rule):
    losses, running = whole
    for process in ran:
        found = process[library, rule]
        assert found["losses"] == pytest.approx(losses, rel=1e-9)
        if rule == "never":
            assert found["statistics"] == pytest.approx(running, rel=1e-9)


@pytest.mark.parametrize("library", ["channels", "rows"])
def test_what_is_sent_is_what_is_counted(ran, library):
    model, (inputs, _) = MODEL(), data()
    sent = count(library, model.layers, split(inputs.float(), M)[0], T, M).sent
    doubled = [{what: 2 * size for what, size in of.items()} for of in sent]
    for process, counted, measured in zip(
        ran, doubled, ran[0][library, "never"]["sent"], strict=True
    ):
        if library == "rows":  # running statistics, whose counters are not doubled
            counted["broadcast"] = round(process[library, "never"]["buffer_bytes"] * (T - 1) / T)
        assert measured == pytest.approx(counted, abs=4)  # of what a ring sends a third of


def test_what_cannot_be_divided_is_refused_in_one_line():
    with pytest.raises(ValueError, match=r"^tensor_parallel = 2: has a .* use the model 'amoeba"):
        refuse_undivided("rows", build("unet", B=1, C=2, image=64).layers, 2)
    layers = build("amoebanet-d", L=3, D=8, image=32).layers
    refuse_undivided("rows", layers, 3)
    with pytest.raises(ValueError, match="divides the output channels of no convolution"):
        refuse_undivided("channels", layers, 3)
