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
    given = {"config": CONFIG, **given}
    return Setup(model.layers, model.loss, sample=sample, device=torch.device("cpu"), **given)


def gradients_of(module: nn.Module) -> dict[str, Tensor]:
    return {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}


def of_library(library: str, group: Any, config: PipelineConfig) -> dict[str, Any]:
    method = make(library, setup(group=group, optimizer=SGD, config=config))
    inputs, targets = data()
    loss = method.train_step(inputs, targets).loss
    found = {"loss": loss, "gradients": gradients_of(method.module)}
    if config.checkpoint == "never":  # recomputed ones move running statistics twice
        found["buffers"] = {name: b.clone() for name, b in method.module.named_buffers()}
        method.train_step(inputs, targets)  # DistributedDataParallel has its buckets now
        found["sent"] = method.sent_bytes(inputs, targets)
        found["evaluated"] = method.evaluate(inputs, targets).loss
    method.close()
    return found


@pytest.fixture(scope="module")
def ran() -> list[dict[tuple[str, str], Any]]:
    return launch(both, stages=T)


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    """Three steps of one device, and an evaluation."""
    torch.set_default_dtype(torch.float64)
    try:
        model, (inputs, targets) = MODEL(), data()
        module = setup().build_stage([len(model.layers)], 0)
        optimizer = SGD(module.parameters())
        found: dict[str, Any] = {"loss": 0.0}
        for step in range(3):
            optimizer.zero_grad()
            for part, target in zip(split(inputs, M), split(targets, M), strict=True):
                loss = model.loss(module(part), target) / M
                loss.backward()
                found["loss"] += loss.item() * (step == 0)
            if step == 0:
                found["gradients"] = gradients_of(module)
                found["buffers"] = {n: b.clone() for n, b in module.named_buffers()}
            optimizer.step()
        module.eval()
        with torch.no_grad():
            found["evaluated"] = model.loss(module(inputs), targets).item()
        return found
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("rule", ["never", "always"])
@pytest.mark.parametrize("library", ["channels", "rows"])
def test_a_step_is_that_of_one_device(ran, whole, library, rule):
    for process in ran:
        found = process[library, rule]
        assert found["loss"] == pytest.approx(whole["loss"], rel=1e-9)
        if rule == "never":
            for name, buffer in whole["buffers"].items():
                assert torch.allclose(found["buffers"][name].double(), buffer.double(), rtol=1e-9)
            assert found["evaluated"] == pytest.approx(whole["evaluated"], rel=1e-9)
    for name, gradient in whole["gradients"].items():
        parts = [process[library, rule]["gradients"][name] for process in ran]
        divided = parts[0].shape != gradient.shape
        for joined in [torch.cat(parts)] if divided else parts:
            assert torch.allclose(joined, gradient, rtol=1e-7, atol=1e-9), name


@pytest.mark.parametrize("library", ["channels", "rows"])
def test_what_is_sent_is_what_is_counted(ran, library):
    model, (inputs, _) = MODEL(), data()
    sent = count(library, model.layers, split(inputs.float(), M)[0], T, M).sent
    doubled = [{what: 2 * size for what, size in of.items()} for of in sent]
    for process, counted, measured in zip(
        ran, doubled, ran[0][library, "never"]["sent"], strict=True
    ):
        if library == "rows":  # running statistics, whose counters are not doubled
            buffers = sum(buffer.nbytes for buffer in process[library, "never"]["buffers"].values())
            counted["broadcast"] = round(buffers * (T - 1) / T)
        assert measured == pytest.approx(counted, abs=4)  # of what a ring sends a third of


def test_what_cannot_be_divided_is_refused_in_one_line():
    with pytest.raises(ValueError, match=r"^tensor_parallel = 2: has a .* use the model 'amoeba"):
        refuse_undivided("rows", build("unet", B=1, C=2, image=64).layers, 2)
    layers = build("amoebanet-d", L=3, D=8, image=32).layers
    refuse_undivided("rows", layers, 3)
    with pytest.raises(ValueError, match="divides the output channels of no convolution"):
        refuse_undivided("channels", layers, 3)
