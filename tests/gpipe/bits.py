"""What the processes of `test_bits.py` run; at module level so that they can import it."""

import pickle
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from repro.gpipe import Pipeline
from repro.gpipe.core.layers import Layer
from repro.models import build

N, M, STEPS, WIDTH = 10, 4, 5, 6
SEQUENCES, LENGTH, PARTS = 7, 5, 3  # mini-batches of sequences, which M does not divide
STAGES = (1, 2, 3, 4)
CHECKPOINTS = ("always", "except_last", "never")
SEEDS = (10, 16, 22, 38)  # of random models, each of which a boundary once changed
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "momentum": lambda parameters: torch.optim.SGD(
        parameters, lr=0.01, momentum=0.9, weight_decay=0.01
    ),
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
    return [
        linear,
        Means,
        lambda: spectral_norm(nn.Linear(WIDTH, WIDTH)),
        lambda: nn.BatchNorm1d(WIDTH),
        Means,
    ]


def awkward() -> list[Layer]:
    """An ignored output, views with gaps that pass through a layer, and in-place layers."""
    return [linear, Two, First, Gaps, nn.Identity, lambda: nn.ReLU(inplace=True), linear]


class Recurrent(nn.Module):
    """A recurrent layer of torch that returns its outputs, or its states too, which are ignored.

    `time_first` computes on transposed views, as torch does where batch_first=False.
    """

    def __init__(
        self,
        kind: Callable[..., nn.RNNBase],
        wide: int,
        *,
        states: bool = False,
        time_first: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        self.states, self.time_first = states, time_first
        width = wide // 2 if options.get("bidirectional") else wide
        self.recurrent = kind(wide, width, batch_first=not time_first, **options)

    def forward(self, value: Any) -> Any:
        x = value[0] if isinstance(value, tuple) else value
        outputs, states = self.recurrent(x.transpose(0, 1) if self.time_first else x)
        outputs = outputs.transpose(0, 1) if self.time_first else outputs
        return (outputs, states) if self.states else outputs


class Attention(nn.Module):
    """Self-attention with a residual."""

    def __init__(self, wide: int, *, weights: bool = False, **options: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(wide, 2, batch_first=True, **options)
        self.weights = weights

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attention(x, x, x, need_weights=self.weights)[0]


class Apply(nn.Module):
    """A function as a layer."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, value: Any) -> Any:
        return self.function(value)


def frozen(module: nn.Module) -> nn.Module:
    """The module in eval mode, not trained."""
    return module.eval().requires_grad_(False)


def encoder(wide: int, **options: Any) -> nn.Module:
    """A layer of a transformer."""
    all_options: dict[str, Any] = {"dropout": 0.1, "batch_first": True} | options
    return nn.TransformerEncoderLayer(wide, 2, 2 * wide, **all_options)


def recurrent(wide: int) -> list[Layer]:
    """Every kind, in both directions, in layers of two with dropout, batch or time first."""
    return [
        lambda: nn.Linear(wide, wide),
        lambda: Recurrent(nn.GRU, wide, bidirectional=True),
        lambda: Recurrent(nn.LSTM, wide, num_layers=2, dropout=0.2),
        lambda: Recurrent(nn.RNN, wide, num_layers=2, dropout=0.2),
        lambda: Recurrent(nn.LSTM, wide, time_first=True, bidirectional=True),
        lambda: nn.Linear(wide, wide),
    ]


def states(wide: int) -> list[Layer]:
    """The same returning tuples."""
    return [
        lambda: Recurrent(nn.GRU, wide, states=True, bidirectional=True),
        lambda: Recurrent(nn.LSTM, wide, states=True),
        lambda: Recurrent(nn.RNN, wide, states=True, time_first=True),
        lambda: Recurrent(nn.LSTM, wide, bidirectional=True),
        lambda: nn.Linear(wide, wide),
    ]


def attention(wide: int) -> list[Layer]:
    """Attention that is trained, and frozen in eval mode, where torch has a fast path."""
    return [
        lambda: encoder(wide),
        lambda: frozen(encoder(wide, activation="gelu")),
        lambda: frozen(Attention(wide, weights=True)),
        lambda: Attention(wide, dropout=0.1),
        lambda: encoder(wide, norm_first=True).eval(),
        lambda: encoder(wide, batch_first=False),
    ]


def frozen_front(wide: int) -> list[Layer]:
    """Nothing requires a gradient before the third layer."""
    return [
        lambda: frozen(encoder(wide, norm_first=True)),
        lambda: frozen(Recurrent(nn.LSTM, wide)),
        lambda: encoder(wide, batch_first=False, norm_first=True),
        lambda: frozen(encoder(wide)),
        lambda: nn.Linear(wide, wide),
    ]


def layouts(wide: int) -> list[Layer]:
    """Recurrent layers return transposed views; their gradients have other strides."""
    return [
        lambda: Recurrent(nn.GRU, wide),
        lambda: nn.Linear(wide, wide),
        lambda: Recurrent(nn.LSTM, wide),
        lambda: nn.Linear(wide, wide),
        lambda: Recurrent(nn.GRU, wide, time_first=True),
        lambda: nn.Linear(wide, wide),
    ]


def alignments(wide: int) -> list[Layer]:
    """Views that begin anywhere in memory."""
    return [
        lambda: nn.Linear(wide, wide),
        lambda: Apply(VIEWS["unaligned"]),
        lambda: nn.Linear(wide, wide),
        lambda: Apply(VIEWS["unaligned, with gaps"]),
        lambda: nn.Linear(wide, wide),
        lambda: Apply(VIEWS["mean"]),
        lambda: nn.Linear(wide, wide),
    ]


# What a layer may do to how a tensor and its gradient lie in memory; [N, T, W] -> [N, T, W].
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda x: x.transpose(1, 2).tanh().transpose(1, 2),
    "time first": lambda x: x.transpose(0, 1).contiguous().tanh().transpose(0, 1),
    "rotated": lambda x: torch.cat([x[:, 1:], x[:, :1]], 1),
    "flipped": lambda x: x.flip(1),
    "gaps": lambda x: torch.stack([x, -x], -1)[..., 0],
    "unaligned": lambda x: torch.cat([x.flatten()[:1], x.flatten()])[1:].view_as(x),
    "unaligned, with gaps": lambda x: nn.functional.pad(x, (1, 0))[..., 1:],
    "mean": lambda x: x + x.mean(1, keepdim=True),
    "repeated": lambda x: x.mean(1, keepdim=True).expand_as(x),
    "swapped": lambda x: torch.cat(x.chunk(2, -1)[::-1], -1),
    "unbound": lambda x: torch.stack(x.unbind(1)[::-1], 1),
    "products": lambda x: x.tanh() @ x.tanh().transpose(1, 2) @ x / x.shape[-1],
    "in place": lambda x: (2.0 * x).relu_(),
    "itself": lambda x: x,
}


def at_random(seed: int) -> tuple[int, list[Layer]]:
    """A width, and layers of those above."""
    rng = random.Random(seed)
    wide = rng.choice([6, 10, 12, 16, 24, 30, 32])
    trained: list[Layer] = [
        lambda: nn.Linear(wide, wide),
        lambda: Recurrent(nn.GRU, wide),
        lambda: Recurrent(nn.LSTM, wide, bidirectional=True),
        lambda: Recurrent(nn.RNN, wide, time_first=True),
        lambda: nn.LayerNorm(wide),
        lambda: Attention(wide),
        lambda: encoder(wide),
    ]
    frozen_ones: list[Layer] = [partial(lambda made: frozen(made()), made) for made in trained]
    views: list[Layer] = [partial(Apply, view) for view in VIEWS.values()]
    two: list[Layer] = [lambda: Apply(lambda x: (x.sin(), x.chunk(2, -1))), lambda: Apply(_joined)]
    chosen: list[Layer] = []
    for _ in range(rng.randint(3, 6)):
        chosen.extend([rng.choice(rng.choice([trained, trained, frozen_ones, views, views]))])
        if rng.random() < 0.2:
            chosen.extend(two)
    return wide, [*chosen, lambda: nn.Linear(wide, wide)]


def _joined(value: tuple[Tensor, tuple[Tensor, Tensor]]) -> Tensor:
    whole, halves = value
    return whole * torch.cat(halves, -1)


def sequence_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss whose gradient has other strides than the outputs, and is missing for some."""
    return nn.functional.mse_loss(outputs[:, -1] + outputs.mean(1), targets)


def sequences(wide: int) -> tuple[Tensor, Tensor]:
    """One mini-batch of sequences."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(SEQUENCES, LENGTH, wide, generator=generator)
    return x, torch.randn(SEQUENCES, wide, generator=generator)


def drawing_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss that draws from all three generators."""
    noise = torch.rand(()) + random.random() + float(np.random.rand())
    return nn.functional.mse_loss(nn.functional.dropout(outputs, 0.2), targets) * noise


def batch() -> tuple[Tensor, Tensor]:
    """One mini-batch of N examples."""
    generator = torch.Generator().manual_seed(3)
    return torch.randn(N, WIDTH, generator=generator), torch.randn(N, WIDTH, generator=generator)


SEQUENCE_MODELS: dict[str, tuple[Callable[[int], list[Layer]], int]] = {  # with their widths
    "recurrent": (recurrent, 16),
    "states": (states, 30),
    "attention": (attention, 16),
    "frozen front": (frozen_front, 16),
    "layouts": (layouts, 32),
    "alignments": (alignments, 6),
}


def model(name: str | int) -> tuple[Sequence[Layer], tuple[Tensor, Tensor], Callable[..., Tensor]]:
    """Layers, a mini-batch and the loss; a number is the seed of a random model."""
    if isinstance(name, int):
        wide, layers = at_random(name)
        return layers, sequences(wide), sequence_loss
    if name in SEQUENCE_MODELS:
        layers, wide = SEQUENCE_MODELS[name]
        return layers(wide), sequences(wide), sequence_loss
    if name == "amoebanet":
        # With the paper's momentum of 0.0003 five steps leave statistics of which the evaluation
        # makes 10^18, and NaN on some processors.
        built = build(
            "amoebanet-d", L=3, D=16, image=32, num_classes=10, dropout=0.3, bn_momentum=0.9
        )
    elif name == "transformer":
        built = build("transformer", L=2, d=16, H=32, heads=2, V=64, T=8, dropout=0.2)
    else:
        layers = {"drawing": drawing, "changing": changing, "awkward": awkward}[name]()
        return layers, batch(), drawing_loss if name == "drawing" else nn.functional.mse_loss
    return built.layers, built.batch(N, 0), built.loss


def generator_states() -> tuple:
    """The state of each generator that belongs to the user."""
    return random.getstate(), pickle.dumps(np.random.get_state()), torch.get_rng_state().tolist()


def train(
    name: str | int,
    stages: int,
    checkpoint: str,
    optimizer: str,
    schedule: str,
    stages_per_rank: int = 1,
) -> dict[str, dict[str, Tensor] | list[float]]:
    """This stage's state before and after, the gradients of the last step, losses and evaluations.

    The user's generators are as they were.
    """
    layers, (inputs, targets), loss_fn = model(name)
    states = generator_states()
    parts, steps = (PARTS, 3) if inputs.shape[0] == SEQUENCES else (M, STEPS)
    options = {
        "checkpoint": checkpoint,
        "schedule": schedule,
        "stages_per_rank": stages_per_rank,
        "balance": "uniform",
        "device": "cpu",
        "seed": 7,
    }
    pipe = Pipeline(layers, stages, parts, **options)  # pyright: ignore[reportArgumentType]
    initial = {key: value.clone() for key, value in pipe.module.state_dict().items()}
    parameters = list(pipe.parameters())
    own = OPTIMIZERS[optimizer](parameters) if parameters else None
    losses = [pipe.train_step(inputs, targets, loss_fn, own).loss for _ in range(steps)]
    losses.append(pipe.evaluate(inputs, targets, loss_fn).loss)
    pipe.close()
    assert generator_states() == states
    gradients = {key: p.grad for key, p in pipe.module.named_parameters() if p.grad is not None}
    final = dict(pipe.module.state_dict())
    return {"initial": initial, "gradients": gradients, "final": final, "losses": losses}


CASES = [
    (name, "momentum", c, "gpipe") for name in ("amoebanet", "transformer") for c in CHECKPOINTS
]
CASES += [
    (name, "adam", c, "gpipe")
    for name in ("drawing", "changing", "awkward", "transformer")
    for c in CHECKPOINTS
]
SEQUENCE_CASES = [
    (name, "momentum", c, "gpipe") for name in SEQUENCE_MODELS for c in ("always", "never")
]
SEQUENCE_CASES += [
    (name, "momentum", "except_last", "gpipe") for name in ("recurrent", "attention")
]
SEQUENCE_CASES += [
    (name, "momentum", c, "1f1b")
    for name in ("recurrent", "attention")
    for c in ("always", "never")
]
SEQUENCE_CASES += [(seed, "momentum", c, "gpipe") for seed in SEEDS for c in ("always", "never")]


def everything(cases: Sequence[tuple[Any, str, str, str]]) -> dict:
    """All cases for each K on the first K ranks."""
    rank = dist.get_rank()
    return {
        (*case, K): train(case[0], K, case[2], case[1], case[3])
        for case in cases
        for K in STAGES
        if rank < K
    }
