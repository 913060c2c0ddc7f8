"""A setup of the probe model, and the checks of a method on it."""

from dataclasses import fields
from functools import partial
from typing import Any

import torch

from repro.gpipe import PipelineConfig
from repro.methods.checks import Check, examine
from repro.methods.method import Setup
from repro.methods.probe import probe


def setup(**changed: Any) -> Setup:
    """A small model; `changed` are fields of the setup or of its pipeline's settings."""
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


def examined(maker: Any, **changed: Any) -> dict[str, Check]:
    return examine(maker, setup(checkpoint="always", **changed), probe().batch, 16)
