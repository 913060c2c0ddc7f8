"""Small models, each with what is hard to cut, which `compare.py` trains in every way."""

import pickle
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from repro.gpipe import Weighted
from repro.gpipe.core.layers import Layer
from repro.models import build

N, M, WIDTH = 10, 4, 6  # M cuts N into unequal parts
CLASSES, PAD = 5, 0


def linear() -> nn.Module:
    return nn.Linear(WIDTH, WIDTH)


class Drawing(nn.Module):
    """Draws from Python's and NumPy's global generators; in its first step only if told so."""

    def __init__(self, *, at_first: bool = True) -> None:
        super().__init__()
        self.at_first = at_first
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.calls: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls <= M and not self.at_first:
            return x
        return x * (0.5 + random.random()) + float(np.random.rand()) + random.gauss(0.0, 0.1)


class Means(nn.Module):
    """Exponential averages and counters, changed in each of the ways that people write."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("in_place", "by_data", "reassigned", "every_other"):
            self.register_buffer(name, torch.zeros(WIDTH))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("late", None)  # made in the first forward, as `calls` is
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
        self.late = mean if self.late is None else 0.5 * self.late + mean
        self.calls = getattr(self, "calls", 0) + 1
        x = x + self.late / self.calls
        return x + self.in_place * self.by_data - self.reassigned * self.every_other / self.count


class Apply(nn.Module):
    """A function as a layer."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, value: Any) -> Any:
        return self.function(value)


class Around(nn.Module):
    """A layer that does something with another module and its own input."""

    def __init__(self, module: nn.Module, function: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.module, self.function = module, function

    def forward(self, value: Any) -> Any:
        return self.function(self.module, value)


def layer(function: Callable[[Any], Any], *, linear_first: bool = False) -> Callable[[], nn.Module]:
    """A function as a layer, with a linear layer before it where asked."""
    return lambda: (
        Around(linear(), lambda m, x: function(m(x))) if linear_first else Apply(function)
    )


def drawing_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss that draws from all three generators."""
    noise = torch.rand(()) + random.random() + float(np.random.rand())
    return nn.functional.mse_loss(nn.functional.dropout(outputs, 0.2), targets) * noise


def refused(words: str, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """What a call raised, which must be a ValueError of one line with these words."""
    with pytest.raises(ValueError, match=words) as caught:
        call(*arguments, **named)
    assert "\n" not in str(caught.value)
    return caught


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(N, WIDTH, generator=generator), torch.randn(N, WIDTH, generator=generator)


def generator_states() -> tuple:
    """The state of each generator that belongs to the user."""
    return random.getstate(), pickle.dumps(np.random.get_state()), torch.get_rng_state().tolist()


def _fork(x: Tensor) -> tuple:
    """One tensor -> a nested value with a skip, an integer and a no-grad member."""
    return x, {"skip": [x], "ids": (x.detach() > 0).long(), "mask": x.detach() > 0}


def _middle(linear: nn.Module, value: tuple) -> tuple:
    return linear(value[0]).tanh() * value[1]["mask"], value[1]


def _join(value: tuple) -> Tensor:
    return value[0] + value[1]["skip"][0] * value[1]["ids"]


def nested() -> list[Layer]:
    """Deterministic layers with nested boundaries, an in-place layer and one without parameters."""
    middle = [lambda: Around(linear(), _middle)] * 2
    return [linear, layer(_fork), *middle, layer(_join), lambda: nn.ReLU(True), linear]


def noisy() -> list:
    return [
        linear,
        lambda: nn.Dropout(0.5),
        lambda: nn.BatchNorm1d(WIDTH),
        linear,
        lambda: nn.Dropout(0.2),
        linear,
    ]


def compiled() -> Any:
    return torch.compile(linear(), backend="aot_eager")


def frozen_linear() -> nn.Module:
    return linear().requires_grad_(False)


def _same(value: tuple[Tensor, dict[str, Tensor]]) -> Tensor:
    first, second = value[0], value[1]["again"]
    assert first is second, "one tensor"
    first.mul_(2.0)  # the other one, too
    return first + second.tanh()


def _mixed(x: Tensor) -> tuple:
    return x, (x > 0), (x.detach() * 3).long(), x.detach().abs(), x.new_zeros(())


def _use_mixed(value: tuple) -> Tensor:
    x, positive, integer, constant, scalar = value
    return x * positive + integer * x + constant + scalar


def _slope(x: Tensor) -> Tensor:
    with torch.enable_grad():
        inner = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(inner.tanh().square().sum(), inner, create_graph=True)
    return x + slope


def _halved_gradient(x: Tensor) -> Tensor:
    if x.requires_grad:
        x.register_hook(lambda grad: grad / 2)
    return x.tanh()


CROSSINGS: dict[str, list[Layer]] = {
    "none trained": [frozen_linear, frozen_linear, frozen_linear],
    "twice": [layer(lambda x: (x, {"again": x}), linear_first=True), nn.Identity, layer(_same)],
    "mixed": [layer(_mixed, linear_first=True), nn.Identity, layer(_use_mixed)],
    "a derivative in a layer": [linear, layer(_slope, linear_first=True), linear],
    "a hook on an input": [linear, layer(_halved_gradient), linear],
    "halves": [
        layer(lambda x: x.bfloat16(), linear_first=True),
        nn.Identity,
        layer(lambda x: x.float()),
    ],
}


def token_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean over the tokens that are not padding, NaN if all are."""
    return nn.functional.cross_entropy(outputs.flatten(0, -2), targets.flatten(), ignore_index=PAD)


class Island(nn.Module):
    """A product in float32, whose gradient must be computed in float32 too."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return x.float() @ self.weight


def twice() -> nn.Module:
    """A weight that is used twice: autocast casts it once and adds two bfloat16 gradients."""
    return Around(linear(), lambda m, x: m(m(x).tanh()))


class Sharpened(torch.optim.SGD):
    """An optimizer that multiplies matrices, in whatever number format the multiplication runs."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = p.grad + 0.01 * (p.grad @ p.grad.T @ p.grad) if p.ndim == 2 else p.grad
        super().step(closure)


def tied() -> list[Layer]:
    """Layers that share a weight, that have weights of another type, and that have none."""

    def sharing() -> nn.Module:
        first, second = linear(), nn.Linear(WIDTH, WIDTH)
        second.weight = first.get_parameter("weight")
        return nn.Sequential(first, second)

    def in_double() -> nn.Module:
        return Around(linear().double(), lambda m, x: m(x.double()).float())

    return [sharing, in_double, nn.Tanh, linear]


def amplified(x: Tensor) -> Tensor:
    """Overflows float16 in the gradients of all layers before it."""
    if x.requires_grad:
        x = x.view_as(x)
        x.register_hook(lambda gradient: gradient * 2.0**7)
    return x


class Branches(nn.Module):
    """Takes one way for positive first inputs, another for negative ones, and never a third.

    The sign is one micro-batch's, hence a replica's own where its inputs all have it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (
            nn.Sequential(linear(), nn.BatchNorm1d(WIDTH)) for _ in range(3)
        )
        self.dead = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        if x[0, 0] > 0:
            return self.first(x) + 0.0 * self.dead
        return self.second(x)


class CheckedNorm(nn.BatchNorm2d):
    """A subclass that normalises by torch's forward."""


class Norms(nn.Module):
    """Adds what norms of every kind make of the same input."""

    def __init__(self) -> None:
        super().__init__()
        made = [nn.BatchNorm2d(3, momentum=None), CheckedNorm(3)]
        self.plain = nn.ModuleList(made).double()
        self.sequences, self.volumes = nn.BatchNorm1d(3).double(), nn.BatchNorm3d(3).double()

    def forward(self, x: Tensor) -> Tensor:
        for norm in [*self.plain, self.plain[0]]:  # one of them twice
            x = x + norm(2.0 * x)
        x = x + self.sequences(x.flatten(2)).view_as(x) + self.volumes(x[..., None])[..., 0]
        self.sequences.track_running_stats = not self.training  # a pass that moves nothing
        x = x + 0.01 * self.sequences(x.flatten(2)).view_as(x)
        self.sequences.track_running_stats = True
        return x


def norms() -> "Model":
    generator = torch.Generator().manual_seed(5)
    kinds = {"generator": generator, "dtype": torch.float64}
    x, y = (3.0 * torch.randn(N, 3, 4, 2, **kinds) + 1.0 for _ in range(2))
    layers = [lambda: nn.Conv2d(3, 3, 1).double(), Norms]
    return Model(layers * 2, [(x, y)] * 3)


class CountingLoss(nn.Module):
    """A loss with a buffer that moves once for each micro-batch."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Any
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.calls = self.calls + 1
        return nn.functional.mse_loss(outputs, targets) * (1.0 + self.calls / 10)


def doubled(layers: Sequence[Callable[[], nn.Module]]) -> list[Layer]:
    """The same in float64, since a norm of few examples magnifies what rounding does."""
    return [lambda layer=layer: layer().double() for layer in layers]


def double_batch() -> tuple[Tensor, ...]:
    return tuple(t.double() for t in batch())


# It tells no gradient from a gradient of zeros.
MOMENTUM = partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.1)


@dataclass(frozen=True)
class Model:
    layers: Sequence[Layer]
    batches: Sequence[tuple[Any, ...]]  # one mini-batch for each step
    loss: Callable[[Any, Any], Tensor] = nn.functional.mse_loss
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer] = MOMENTUM
    autocast: torch.dtype | None = None  # of the region that the user's loop is inside of
    # What the user's program does before a step to its layers, which are named by their index.
    prepare: Callable[[int, nn.Sequential], None] = lambda _step, _layers: None
    accumulates: bool = False  # whether two steps make one update
    clip: tuple[float, float] | None = None  # a limit of the gradients, and the type of their norm
    scaled: bool = False  # whether the loss is scaled


def changed(path: str, change: Callable[[nn.Module], Any]) -> Callable[[int, nn.Sequential], None]:
    """Before the third step the user changes the layer at this path, or puts another there."""

    def prepare(step: int, whole: nn.Sequential) -> None:
        if step == 2 and path in dict(whole.named_modules()):
            with torch.random.fork_rng():
                torch.manual_seed(5)
                made = change(whole.get_submodule(path))
            if isinstance(made, nn.Module):
                whole.set_submodule(path, made.double())

    return prepare


def ones_as_weight(layer: nn.Module) -> None:
    layer.weight = nn.Parameter(torch.ones(WIDTH, WIDTH).double())


REPLACED = {
    "last": changed("3", lambda _: linear()),
    "inside": changed("2.0", lambda _: linear()),
    "weight": changed("3", ones_as_weight),
    "weight norm": changed("3", weight_norm),
    "thawed": changed("3", lambda m: m.requires_grad_(True)),
    "buffer": changed("1", lambda _: Means()),
    "norm": changed("1", lambda _: nn.BatchNorm1d(WIDTH)),
}


def token_batches() -> list[tuple[Tensor, Tensor]]:
    """Mini-batches of several sizes and lengths; one micro-batch has padding alone."""
    generator = torch.Generator().manual_seed(6)
    made = []
    for n, length in ((N, 3), (N, 5), (9, 5), (N, 3), (8, 1)):
        x = torch.randn(n, length, WIDTH, generator=generator)
        tokens = torch.randint(1, CLASSES, (n, length), generator=generator)
        tokens[n // 3 : n // 2 + 1] = PAD
        made.append((x, tokens))
    return made


def branching_batch() -> tuple[Tensor, Tensor]:
    """The first half of the examples takes one way, the second half another."""
    x, y = batch()
    x[:, 0] = x[:, 0].abs()
    x[N // 2 :, 0] *= -1
    return x, y


def of_the_paper(name: str) -> Model:
    options: dict[str, Any] = {"L": 2, "d": 16, "H": 32, "heads": 2, "V": 64, "T": 8}
    options["dropout"] = 0.2
    if name == "amoebanet-d":
        # With the paper's momentum of 0.0003 a few steps leave statistics of which the evaluation
        # makes 10^18, and NaN on some processors.
        options = {"L": 3, "D": 16, "image": 32, "num_classes": 10, "dropout": 0.3}
        options["bn_momentum"] = 0.9
    made = build(name, **options)
    return Model(made.layers, [made.batch(N, n) for n in range(3)], made.loss)


QUARTER = layer(lambda x: x / 4, linear_first=True)
MODELS: dict[str, Callable[[], Model]] = {
    "nested": lambda: Model(nested(), [batch()] * 3),
    "noisy": lambda: Model(doubled(noisy()), [double_batch()] * 3),
    # Layers that draw from generators other than torch's; Adam makes whole steps of the last bits
    # of a gradient.
    "drawing": lambda: Model(
        [linear, Drawing, lambda: nn.Dropout(0.3), partial(Drawing, at_first=False), linear],
        [batch()] * 4,
        drawing_loss,
        partial(torch.optim.AdamW, lr=0.01),
    ),
    # Layers whose forward changes buffers.
    "changing": lambda: Model(
        doubled(
            [linear, Means, lambda: spectral_norm(linear()), lambda: nn.BatchNorm1d(WIDTH), Means]
        ),
        [double_batch()] * 5,
    ),
    "strided": lambda: Model(
        nested(), [tuple(torch.stack([t, t], -1)[..., 0] for t in batch())] * 2
    ),
    "tokens": lambda: Model(
        [linear, nn.Tanh, lambda: nn.Linear(WIDTH, CLASSES)],
        token_batches(),
        Weighted(token_loss, lambda y: (y != PAD).sum()),
    ),
    # Whichever way these are cut, bfloat16 crosses a boundary where they are autocast.
    "cast": lambda: Model(
        [linear, twice, Island, lambda: nn.LayerNorm(WIDTH), linear, twice],
        [batch()] * 4,
        optimizer=partial(Sharpened, lr=0.3),
        autocast=torch.bfloat16,
    ),
    "norms": norms,
    "compiled": lambda: Model([compiled, nn.Tanh, linear], [batch()] * 3),
    "accumulated": lambda: Model(nested(), [batch()] * 4, accumulates=True),
    "clipped": lambda: Model(tied(), [batch()] * 3, clip=(0.1, 2.0)),
    "clipped by the largest": lambda: Model(tied(), [batch()] * 3, clip=(0.03, torch.inf)),
    # With a large scale of the loss, gradients of the first layers are inf, of the last finite.
    "scaled": lambda: Model(
        [QUARTER, layer(amplified), QUARTER, nn.Tanh, nn.Identity],
        [batch()] * 6,
        optimizer=partial(torch.optim.SGD, lr=0.001),
        autocast=torch.float16,
        scaled=True,
    ),
    "counting loss": lambda: Model([linear, linear], [batch()] * 3, CountingLoss()),
    "branches": lambda: Model([Branches, nn.Tanh, linear], [branching_batch()] * 3),
}


def model(name: str) -> Model:
    """A model of this module by its name."""
    if name in ("amoebanet-d", "transformer"):
        return of_the_paper(name)
    if name in REPLACED:
        # Two layers for each of two stages; the last one is frozen until it is thawed.
        layers = [linear, nn.Tanh, lambda: nn.Sequential(linear(), nn.Tanh()), frozen_linear]
        stateless = partial(torch.optim.SGD, lr=0.05, weight_decay=0.1)  # so it can be made anew
        return Model(
            doubled(layers), [double_batch()] * 4, optimizer=stateless, prepare=REPLACED[name]
        )
    if name in CROSSINGS:
        return Model(CROSSINGS[name], [batch()] * 3)
    return MODELS[name]()
