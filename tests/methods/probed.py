"""A small model with what pipelines get wrong, and a step of a method beside the unsplit model."""

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import fields, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from repro.gpipe import PipelineConfig
from repro.gpipe.core.compare import Difference, differences, step_without_pipeline
from repro.gpipe.core.verdict import Verdict, worst
from repro.methods.method import Method, Setup
from repro.models import Model

N = 16


class _Fork(nn.Module):
    """[N, C, H, W] -> two tensors of the same shape."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, functional.relu(self.norm(self.conv(x)))


class _Join(nn.Module):
    """Two tensors [N, C, H, W] -> [N, C]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        return self.norm(pair[0] + pair[1]).mean((2, 3))


def probe() -> Model:
    """Four layers on made-up images [N, 3, 8, 8], with batch norm, and a tuple at a boundary."""
    layers = [
        partial(nn.Conv2d, 3, 8, 3, padding=1),
        partial(_Fork, 8),
        partial(_Join, 8),
        partial(nn.Linear, 8, 5),
    ]
    return Model("probe", layers, _batch, functional.cross_entropy, "images/s")


def _batch(N: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(N, 3, 8, 8, generator=generator)
    return images, torch.randint(5, (N,), generator=generator)


def setup(**changed: Any) -> Setup:
    """Of the small model; `changed` are fields of the setup or of its pipeline's settings."""
    model = probe()
    config: dict[str, Any] = {"stages": 2, "micro_batches": 4, "balance": (2, 2)}
    for field in fields(PipelineConfig):
        if field.name in changed:
            config[field.name] = changed.pop(field.name)
    common: dict[str, Any] = {
        "layers": model.layers,
        "loss": model.loss,
        "config": PipelineConfig(**config),
        "sample": model.batch(4, 0)[0],
        "device": torch.device("cpu"),
        "optimizer": partial(torch.optim.SGD, lr=0.1),
    }
    return Setup(**{**common, **changed})


class Beside(NamedTuple):
    """One step of a method that recomputes, beside one of the unsplit model."""

    gradients: Verdict  # also of the loss
    statistics: Verdict  # running ones of batch norm
    off: float  # by which these differ at most
    tracked: set[int]  # micro-batches that each batch norm has counted


def beside_unsplit(make: Callable[[Setup], Method], **changed: Any) -> Beside:
    """Every process of the library calls this and gets the same result.

    The reference is that of `Pipeline.compare`: the same micro-batches one after the other, without
    recomputation. By section 2.3 of arXiv:1811.06965v5, micro-batches change only the statistics
    that batch norm trains with. The optimizer is SGD with a rate of 1, so that weights show
    gradients.
    """
    optimizer = partial(torch.optim.SGD, lr=1.0)
    given = setup(recompute="always", **changed)
    inputs, targets = probe().batch(N, given.seed)
    found: dict[str, Tensor] = {}
    with closing(make(replace(given, optimizer=optimizer))) as method:
        found["loss"] = torch.tensor(method.train_step(inputs, targets).loss)
        for tensors in method.gather(dict(method.module.state_dict())):
            found |= tensors
        # Each micro-batch is given as that of another replica, since the library chose its size.
        batches = [*zip(method.cut(inputs), method.cut(targets), strict=True)]
    model = given.build_stage([len(given.layers)], 0)
    loss = step_without_pipeline(model, batches, 1, given.loss, seed=0, step=0, order=[0])
    optimizer(model.parameters()).step()
    buffers = dict(model.named_buffers())
    trained = {**dict(model.named_parameters()), "loss": torch.tensor(loss)}
    statistics = _differences(found, buffers)
    return Beside(
        worst(each.verdict for each in _differences(found, trained)),
        worst(each.verdict for each in statistics),
        max(each.largest for each in statistics),
        {int(found[name]) for name in buffers if name.endswith("num_batches_tracked")},
    )


def _differences(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> list[Difference]:
    return [*differences("tensor", found, {name: t.detach() for name, t in expected.items()})]
