"""Random small networks, trained by stage processes and in plain PyTorch.

A case is made from its number alone, so every process and the test make the same one.
"""

import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from examples import Apply, Attention, Recurrent, encoder
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from repro.gpipe import Pipeline
from repro.gpipe.core.layers import build
from repro.gpipe.exact import rng

WIDTH, LENGTH, STEPS, STAGES, SEED = 8, 3, 5, 3, 5


class Stepwise(nn.Module):
    """A layer that changes its work from step `since` on, or in every other step."""

    def __init__(self, since: int, alternating: bool = False) -> None:
        super().__init__()
        self.step = 0
        self.since = since
        self.alternating = alternating
        self.inner = nn.Linear(WIDTH, WIDTH)

    @property
    def on(self) -> bool:
        """Whether it does the other thing in this step."""
        return self.step % 2 == 1 if self.alternating else self.step >= self.since


class DetachedAtFirst(Stepwise):
    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        return y if self.on else y.detach()


class DetachedLater(Stepwise):
    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        return y.detach() if self.on else y


class Dropped(Stepwise):
    """LayerDrop: the layer is left out."""

    def forward(self, x: Tensor) -> Tensor:
        return x if self.on else x + self.inner(x)


class InPlaceLater(Stepwise):
    def forward(self, x: Tensor) -> Tensor:
        if self.on:
            x.mul_(0.5)
        return x + self.inner(x)


class CountsLater(Stepwise):
    """Changes a buffer, first in place, then by assignment."""

    def __init__(self, since: int, alternating: bool = False) -> None:
        super().__init__(since, alternating)
        self.register_buffer("mean", torch.zeros(WIDTH, dtype=self.inner.weight.dtype))
        self.mean: Tensor

    def forward(self, x: Tensor) -> Tensor:
        if self.on:
            self.mean.add_(x.detach().mean((0, 1)), alpha=0.1)
        if self.step > self.since:
            self.mean = self.mean * 0.9
        return self.inner(x) + self.mean


class ThawedInside(Stepwise):
    """A layer that decides itself whether it is trained."""

    def forward(self, x: Tensor) -> Tensor:
        self.inner.requires_grad_(self.on)
        return self.inner(x)


class TwoHeads(Stepwise):
    """Two outputs of which the next layer uses one or the other."""

    def __init__(self, since: int, alternating: bool = False) -> None:
        super().__init__(since, alternating)
        self.other = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.inner(x), self.other(x)


class OneOfTwo(Stepwise):
    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        return self.inner(pair[self.on])


class ChannelsFirst(nn.Module):
    """A layer of [n, C, T] for values of [n, T, C]; what it returns is not contiguous."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x.transpose(1, 2)).transpose(1, 2)


def partly_frozen(draw: random.Random) -> nn.Module:
    """A transformer layer, perhaps frozen in part, perhaps in eval mode for good."""
    options = {"batch_first": draw.random() < 0.5, "norm_first": draw.random() < 0.5}
    made: Any = encoder(WIDTH, **options)
    if draw.random() < 0.5:
        made.self_attn.requires_grad_(False)
    return Evaluated(made) if draw.random() < 0.5 else made


class Evaluated(nn.Module):
    """A module that stays in eval mode."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        self.module.eval()
        return self.module(x)


Blocks = Callable[[random.Random], list[nn.Module]]


def stepwise(kind: Callable[..., nn.Module]) -> Blocks:
    """A layer that changes, at a step drawn by lot."""
    return lambda draw: [kind(draw.randint(1, STEPS - 1), draw.random() < 0.3)]


def writing(make: Blocks) -> Blocks:
    """Layers that write to their input, which the layer before must not need in its B."""
    return lambda draw: [nn.Linear(WIDTH, WIDTH), *make(draw)]


def two_heads(draw: random.Random) -> list[nn.Module]:
    """Two heads, something that passes both on, and the layer that uses one of them."""
    between = [nn.Identity()] if draw.random() < 0.5 else []
    return [TwoHeads(1), *between, OneOfTwo(draw.randint(1, STEPS - 1), draw.random() < 0.7)]


def view_pair(draw: random.Random) -> list[nn.Module]:
    """A tensor and a view of it."""
    return [
        Apply(lambda x: (x, x[..., 1:3])),
        Apply(lambda pair: pair[0] + pair[1].sum(-1, keepdim=True)),
    ]


def chunks(draw: random.Random) -> list[nn.Module]:
    """Parts of one storage, of which one is written to."""
    return [
        nn.Linear(WIDTH, 2 * WIDTH),
        Apply(lambda x: x.chunk(2, -1)),
        Apply(lambda pair: (pair[0] * 1.0).mul_(0.5) + pair[1].sigmoid()),
    ]


def constants(draw: random.Random) -> list[nn.Module]:
    """None and numbers beside a tensor."""
    return [
        Apply(lambda x: {"x": x, "nothing": None, "scale": 0.5}),
        Apply(lambda value: value["x"] * value["scale"]),
    ]


BLOCKS: dict[str, Blocks] = {
    "linear": lambda draw: [nn.Linear(WIDTH, WIDTH)],
    "frozen": lambda draw: [nn.Linear(WIDTH, WIDTH).requires_grad_(False)],
    "tanh": lambda draw: [nn.Tanh()],
    "identity": lambda draw: [nn.Identity()],
    "in place": writing(lambda draw: [nn.ReLU(inplace=True)]),
    "write": writing(lambda draw: [Apply(lambda x: x.add_(0.5))]),
    "layer norm": lambda draw: [nn.LayerNorm(WIDTH)],
    "batch norm": lambda draw: [ChannelsFirst(nn.BatchNorm1d(WIDTH))],
    "convolution": lambda draw: [ChannelsFirst(nn.Conv1d(WIDTH, WIDTH, 3, padding=1))],
    "dropout": lambda draw: [nn.Dropout(0.3)],
    "recurrent": lambda draw: [
        Recurrent(
            draw.choice([nn.RNN, nn.LSTM, nn.GRU]),
            WIDTH,
            time_first=draw.random() < 0.5,
            num_layers=draw.choice([1, 2]),
            bidirectional=draw.random() < 0.5,
        )
    ],
    "attention": lambda draw: [Attention(WIDTH)],
    "encoder": lambda draw: [partly_frozen(draw)],
    "weight norm": lambda draw: [parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))],
    "spectral norm": lambda draw: [parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH))],
    "detached at first": stepwise(DetachedAtFirst),
    "detached later": stepwise(DetachedLater),
    "dropped": stepwise(Dropped),
    "in place later": writing(stepwise(InPlaceLater)),
    "counts later": stepwise(CountsLater),
    "thawed inside": stepwise(ThawedInside),
    "two heads": two_heads,
    "view pair": view_pair,
    "chunks": chunks,
    "constants": constants,
    "transposed": lambda draw: [
        Apply(lambda x: x.transpose(0, 1)),
        Apply(lambda x: x.transpose(0, 1)),
    ],
}


@dataclass
class Case:
    """One network and how it is trained.

    `thaws` has for a step the layer whose parameters are frozen or thawed before it. `accumulates`
    says whether two steps make one update, `tokens` whether an embedding comes first.
    """

    number: int
    kinds: list[str]
    layers: list[nn.Module]
    balance: list[int]
    micro_batches: int
    examples: int
    checkpoint: str
    schedule: str
    transport: str
    dtype: torch.dtype
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
    thaws: dict[int, int]
    accumulates: bool
    tokens: bool

    def __str__(self) -> str:
        what = (
            f"{self.balance} M={self.micro_batches} N={self.examples} {self.checkpoint} "
            f"{self.schedule}"
        )
        more = (
            f"{self.dtype} thaws={self.thaws} accumulates={self.accumulates} tokens={self.tokens}"
        )
        return f"case {self.number}: {', '.join(self.kinds)}; {what} {more}"

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of a step."""
        generator = torch.Generator().manual_seed(1000 * self.number + step)
        shape = (self.examples, LENGTH, WIDTH)
        targets = torch.randn(shape, generator=generator, dtype=self.dtype)
        if self.tokens:
            return torch.randint(0, 5, shape[:2], generator=generator), targets
        return torch.randn(shape, generator=generator, dtype=self.dtype), targets


OPTIMIZERS: list[Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = [
    lambda parameters: torch.optim.SGD(parameters, lr=0.05),
    lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.1),
    # Some gradients are zero but for rounding (a key's bias in attention); Adam would make whole
    # steps of that.
    lambda parameters: torch.optim.AdamW(parameters, lr=0.01, eps=0.01),
]


def case(number: int) -> Case:
    """The case of this number."""
    draw = random.Random(number)
    dtype = draw.choice([torch.float32, torch.float64])
    kinds = [draw.choice(list(BLOCKS)) for _ in range(draw.randint(1, 5))]
    tokens = draw.random() < 0.2
    state = torch.get_rng_state()
    torch.manual_seed(number)
    blocks = [module for kind in kinds for module in BLOCKS[kind](draw)]
    if kinds[0] in ("in place", "write", "in place later") and draw.random() < 0.7:
        blocks = blocks[1:]  # straight to the inputs
    layers = [*([nn.Embedding(5, WIDTH)] if tokens else []), *blocks, nn.Linear(WIDTH, WIDTH)]
    torch.set_rng_state(state)
    layers = [layer.to(dtype) for layer in layers]
    K = draw.randint(1, min(STAGES, len(layers)))
    ends = sorted(draw.sample(range(1, len(layers)), K - 1))
    M = draw.randint(1, 4)
    return Case(
        number,
        kinds,
        layers,
        [b - a for a, b in zip([0, *ends], [*ends, len(layers)], strict=True)],
        M,
        # Batch norm needs two examples in each micro-batch.
        draw.randint(2 * M, 3 * M),
        draw.choice(["always", "always", "except_last", "never"]),
        draw.choice(["gpipe", "gpipe-late", "1f1b", "naive"]),
        draw.choice(["auto", "gloo"]),
        dtype,
        draw.choice(OPTIMIZERS),
        {step: draw.randrange(len(layers)) for step in range(1, STEPS) if draw.random() < 0.2},
        draw.random() < 0.3,
        tokens,
    )


def prepare(what: Case, layers: dict[int, nn.Module], step: int) -> None:
    """What the user's program does before a step."""
    for index, layer in layers.items():
        for module in layer.modules():
            if isinstance(module, Stepwise):
                module.step = step
        if what.thaws.get(step) == index:
            frozen = [p for p in layer.parameters() if not p.requires_grad]
            layer.requires_grad_(bool(frozen))


@dataclass
class Trained:
    """What came of a case, in plain PyTorch, or on one stage."""

    losses: list[float]
    state: dict[str, Tensor]
    gradients: dict[str, Tensor | None]


def _after(what: Case, module: nn.Module, losses: list[float]) -> Trained:
    # Batch norm's running statistics move once a mini-batch here, and once a micro-batch in plain
    # PyTorch.
    state = {
        k: v for k, v in module.state_dict().items() if "running" not in k and "tracked" not in k
    }
    return Trained(losses, state, {key: p.grad for key, p in module.named_parameters()})


def optimizer_of(what: Case, module: nn.Module) -> torch.optim.Optimizer | None:
    """Of all parameters, frozen ones included, since they may be thawed."""
    parameters = [*module.parameters()]
    return what.optimizer(parameters) if parameters else None


def diverges(losses: list[float]) -> bool:
    """Whether training ends here, since later steps would be inf in plain PyTorch too."""
    return losses[-1] > 30 * max(losses[0], 1.0)


def piped(what: Case, stages: list[int]) -> Trained:
    """Trained by a pipeline of these stages, of which this process is one."""
    pipe = Pipeline(
        nn.Sequential(*what.layers),
        len(stages),
        what.micro_batches,
        balance=stages,
        checkpoint=what.checkpoint,
        schedule=what.schedule,
        transport=what.transport,
        device="cpu",
        seed=SEED,
    )
    first = sum(pipe.balance[: pipe.rank])
    own = dict(enumerate(pipe.module, first))
    optimizer = optimizer_of(what, pipe.module)
    losses = []
    for step in range(STEPS):
        prepare(what, own, step)
        x, y = what.batch(step)
        before = x.clone()
        updates = not what.accumulates or step % 2 == 1
        if what.accumulates and optimizer is not None and step % 2 == 0:
            optimizer.zero_grad()
        used = optimizer if not what.accumulates else None
        losses.append(loss_of_step(pipe, x, y, used))
        assert torch.equal(x, before), "the user's inputs were changed"
        if what.accumulates and updates and optimizer is not None:
            optimizer.step()
        if diverges(losses):
            break
    pipe.close()
    return _after(what, pipe.module, losses)


def loss_of_step(pipe: Pipeline, x: Tensor, y: Tensor, optimizer: Any) -> float:
    """Once more where the step was refused because a layer has changed."""
    for _ in range(4):
        try:
            return pipe.train_step(x, y, nn.functional.mse_loss, optimizer).loss
        except ValueError as error:
            if "loss has a gradient" in str(error):
                return float("nan")
            if "can be called again" not in str(error):
                raise
    raise RuntimeError("refused again and again")


def plain(what: Case) -> Trained:
    """One model in plain PyTorch, the micro-batches one after the other."""
    layers = [build(layer, n, SEED, torch.device("cpu")) for n, layer in enumerate(what.layers)]
    module = nn.Sequential(*layers)
    optimizer = optimizer_of(what, module)
    losses = []
    for step in range(STEPS):
        prepare(what, dict(enumerate(layers)), step)
        x, y = what.batch(step)
        if optimizer is not None and (not what.accumulates or step % 2 == 0):
            optimizer.zero_grad()
        total = 0.0
        parts = zip(
            x.tensor_split(what.micro_batches), y.tensor_split(what.micro_batches), strict=True
        )
        for i, (part, target) in enumerate(parts):
            value: Any = part.clone()
            for n, layer in enumerate(layers):
                rng.reseed(rng.hashed(SEED, step, i, n), torch.device("cpu"))
                value = layer(value)
            loss = nn.functional.mse_loss(value, target) * (len(part) / what.examples)
            total += loss.item()
            if loss.requires_grad:
                loss.backward()
        losses.append(total)
        if optimizer is not None and (not what.accumulates or step % 2 == 1):
            optimizer.step()
        if diverges(losses):
            break
    return _after(what, module, losses)


def train_cases(numbers: range) -> list[tuple[Trained | None, Trained | None]]:
    """For each case what this stage trained, and on the first process the same for K=1."""
    warnings.simplefilter("ignore")
    trained = []
    for number in numbers:
        what = case(number)
        try:
            own = piped(what, what.balance) if dist.get_rank() < len(what.balance) else None
            what = case(number)
            alone = piped(what, [len(what.layers)]) if dist.get_rank() == 0 else None
        except Exception as error:
            raise RuntimeError(str(what)) from error
        trained.append((own, alone))
    return trained
