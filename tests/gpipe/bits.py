"""What the stage processes of `test_bits.py` run; at module level so that spawned processes can import it."""

import pickle
import random
from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from repro.gpipe import Pipeline
from repro.gpipe.layers import Layer
from repro.models import build

N, M, STEPS, WIDTH = 10, 4, 5, 6
STAGES = (1, 2, 3, 4)
CHECKPOINTS = ("always", "except_last", "never")
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=0.01),
    "adam": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}


def linear() -> nn.Module:
    """The factory of a plain layer."""
    return nn.Linear(WIDTH, WIDTH)


class Drawing(nn.Module):
    """Draws from Python's and NumPy's global generators."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (0.5 + random.random()) + float(np.random.rand()) + random.gauss(0.0, 0.1)


class Sometimes(nn.Module):
    """Draws in every other step only, from what it declares."""

    draws_from = ("python", "numpy")

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.calls: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x + (random.random() + float(np.random.rand()) if self.calls > M else 0.0)


class Means(nn.Module):
    """Exponential averages and counters, changed in each of the ways that people write."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("in_place", "by_data", "reassigned", "every_other"):
            self.register_buffer(name, torch.zeros(WIDTH))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.in_place: Tensor
        self.by_data: Tensor
        self.reassigned: Tensor
        self.every_other: Tensor
        self.count: Tensor

    def forward(self, x: Tensor) -> Tensor:
        mean = x.detach().mean(0)
        self.in_place.mul_(0.9).add_(mean, alpha=0.1)
        self.by_data.data.mul_(0.8).add_(mean, alpha=0.2)
        self.reassigned = 0.7 * self.reassigned + 0.3 * mean
        if self.count % 2 == 0:
            self.every_other += mean
        self.count = self.count + 1
        return x + self.in_place * self.by_data - self.reassigned * self.every_other / self.count


class Two(nn.Module):
    """Two outputs of which the next layer heeds one."""

    def __init__(self) -> None:
        super().__init__()
        self.heeded, self.ignored = linear(), linear()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.heeded(x), self.ignored(x)


class First(nn.Module):
    """The first of several."""

    def forward(self, value: tuple[Tensor, ...]) -> Tensor:
        return value[0].tanh()


class Gaps(nn.Module):
    """A view with gaps."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([x, -x], dim=-1)[..., 0]


def drawing() -> list[Layer]:
    """Layers that draw from generators other than torch's."""
    return [linear, Drawing, lambda: nn.Dropout(0.3), Sometimes, linear]


def changing() -> list[Layer]:
    """Layers whose forward changes buffers."""
    return [linear, Means, lambda: spectral_norm(nn.Linear(WIDTH, WIDTH)), lambda: nn.BatchNorm1d(WIDTH), Means]


def awkward() -> list[Layer]:
    """An ignored output, views with gaps that pass a layer as they are, and layers that work in place."""
    return [linear, Two, First, Gaps, nn.Identity, lambda: nn.ReLU(inplace=True), linear]


def drawing_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss that draws from all three generators."""
    noise = torch.rand(()) + random.random() + float(np.random.rand())
    return nn.functional.mse_loss(nn.functional.dropout(outputs, 0.2), targets) * noise


def batch() -> tuple[Tensor, Tensor]:
    """One mini-batch of N examples."""
    generator = torch.Generator().manual_seed(3)
    return torch.randn(N, WIDTH, generator=generator), torch.randn(N, WIDTH, generator=generator)


def model(name: str) -> tuple[Sequence[Layer], tuple[Tensor, Tensor], Callable[..., Tensor]]:
    """Layers, a mini-batch and the loss."""
    if name == "amoebanet":
        built = build("amoebanet-d", L=3, D=16, image=32, num_classes=10, dropout=0.3)
    elif name == "transformer":
        built = build("transformer", L=2, d=16, H=32, heads=2, V=64, T=8, dropout=0.2)
    else:
        layers = {"drawing": drawing, "changing": changing, "awkward": awkward}[name]()
        return layers, batch(), drawing_loss if name == "drawing" else nn.functional.mse_loss
    return built.layers, built.batch(N, 0), built.loss


def generator_states() -> tuple:
    """The state of each generator that belongs to the user."""
    return random.getstate(), pickle.dumps(np.random.get_state()), torch.get_rng_state().tolist()


def train(name: str, stages: int, checkpoint: str, optimizer: str) -> dict[str, dict[str, Tensor] | list[float]]:
    """This stage's state before and after, losses and evaluations; the user's generators as they were."""
    layers, (inputs, targets), loss_fn = model(name)
    states = generator_states()
    pipe = Pipeline(layers, stages, M, checkpoint=checkpoint, balance="uniform", device="cpu", seed=7)
    initial = {key: value.clone() for key, value in pipe.module.state_dict().items()}
    parameters = list(pipe.parameters())
    own = OPTIMIZERS[optimizer](parameters) if parameters else None
    losses = [pipe.train_step(inputs, targets, loss_fn, own).loss for _ in range(STEPS)]
    losses.append(pipe.evaluate(inputs, targets, loss_fn).loss)
    pipe.close()
    assert generator_states() == states
    return {"initial": initial, "final": dict(pipe.module.state_dict()), "losses": losses}


CASES = [(name, "momentum", c) for name in ("amoebanet", "transformer") for c in CHECKPOINTS]
CASES += [(name, "adam", c) for name in ("drawing", "changing", "awkward", "transformer") for c in CHECKPOINTS]


def everything() -> dict:
    """All cases for each K on the first K ranks."""
    rank = dist.get_rank()
    return {(*case, K): train(case[0], K, case[2], case[1]) for case in CASES for K in STAGES if rank < K}
