"""A function to launch in two processes: three steps of every method that keeps all bits."""

from functools import partial
from typing import Any

import torch

from repro.gpipe import PipelineConfig
from repro.harness.spec import RunSpec
from repro.harness.tasks.setup import config_of
from repro.methods import Setup, make
from repro.methods.named import METHODS, fields_of
from repro.models import build

M, N = 4, 10
# Those that run; zero-bubble is only simulated.
EXACT = [name for name, method in METHODS.items() if method.exact and name != "zero-bubble"]


def settings(name: str) -> PipelineConfig:
    """A method on two devices."""
    spec = RunSpec(model="transformer", M=M, N=N, balance="uniform", **fields_of(name, 2))
    return config_of(spec)


def trained(config: PipelineConfig) -> dict[str, Any]:
    """Losses and weights of three steps with dropout and Adam."""
    model = build("transformer", L=4, d=16, H=32, heads=2, V=64, T=8)
    method = make(
        "repro",
        Setup(
            model.layers,
            model.loss,
            config,
            sample=None,
            device=torch.device("cpu"),
            optimizer=partial(torch.optim.Adam, lr=0.01),
        ),
    )
    batch = model.batch(N, 0)
    losses = [method.train_step(*batch).loss for _ in range(3)]
    weights = {name: value.clone() for name, value in method.module.state_dict().items()}
    method.close()
    return {"losses": losses, "weights": weights}


def on_two() -> dict[str, dict[str, Any]]:
    """All of them that use two devices."""
    return {name: trained(settings(name)) for name in EXACT if name != "single"}
