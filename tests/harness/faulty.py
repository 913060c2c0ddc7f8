"""Models whose second layer goes wrong in its own way, for `import:faulty:NAME`."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from repro.models import Model


class _Goes(nn.Module):
    def __init__(self, wrong: Callable[[], object]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self._wrong = wrong

    def forward(self, x: Tensor) -> Tensor:
        self._wrong()
        return x + self.weight


def _model(wrong: Callable[[], object]) -> Model:
    return Model(
        name="faulty",
        layers=[partial(_Goes, lambda: None), partial(_Goes, wrong)],
        batch=lambda N, _seed: (torch.ones(N, 4), torch.zeros(N, 4)),
        loss=functional.mse_loss,
        unit="examples/s",
    )


def _raise() -> None:
    raise RuntimeError("layer two is broken")


def raises() -> Model:
    return _model(_raise)


def _raise_in_a_worker() -> None:
    if multiprocessing.parent_process() is not None:
        _raise()


def raises_in_a_worker() -> Model:
    """What no look at the model beforehand can find."""
    return _model(_raise_in_a_worker)


class _Overflows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((1,), 3e38))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight * 10.0


def overflows() -> Model:
    model = _model(lambda: None)
    return Model(model.name, [model.layers[0], _Overflows], model.batch, model.loss, model.unit)


def dies() -> Model:
    return _model(lambda: os.kill(os.getpid(), signal.SIGKILL))


def allocates() -> Model:
    return _model(lambda: torch.empty(10**15))


def hangs() -> Model:
    return _model(lambda: time.sleep(600))
