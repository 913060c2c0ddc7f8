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
    def __init__(self, wrong: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self._wrong = wrong

    def forward(self, x: Tensor) -> Tensor:
        made = self._wrong(x)
        return x + self.weight + (made if isinstance(made, Tensor) else 0)


def _model(wrong: Callable[[Tensor], object]) -> Model:
    return Model(
        name="faulty",
        layers=[partial(_Goes, lambda _: None), partial(_Goes, wrong)],
        batch=lambda N, _seed: (torch.ones(N, 4), torch.zeros(N, 4)),
        loss=functional.mse_loss,
        unit="examples/s",
    )


def _raise(_: Tensor) -> None:
    raise RuntimeError("layer two is broken")


def raises() -> Model:
    return _model(_raise)


def raises_in_a_worker() -> Model:
    """What no look at the model beforehand can find."""
    return _model(lambda x: multiprocessing.parent_process() is not None and _raise(x))


def overflows() -> Model:
    return _model(lambda x: x * 3e38 * 10.0)


def dies() -> Model:
    return _model(lambda _: os.kill(os.getpid(), signal.SIGKILL))


def allocates() -> Model:
    return _model(lambda _: bool(torch.empty(10**15).shape))


def hangs() -> Model:
    return _model(lambda _: time.sleep(600))


def takes_tokens() -> list[Callable[[], nn.Module]]:
    return [partial(nn.Embedding, 10, 4), partial(nn.Linear, 4, 10)]
