"""Random small networks, some of which change from step to step; `compare.py` trains them.

A case is made from its number alone, so every process and the test make the same one.
"""

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from examples import Apply, Around, Model
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from repro.gpipe import PipelineConfig

LENGTH, STEPS, STAGES = 3, 5, 3


class Stepwise(nn.Module):
    """A layer that changes its work from step `since` on, or in every other step."""

    def __init__(self, work: Any, wide: int, since: int, alternating: bool = False) -> None:
        super().__init__()
        self.work, self.step, self.since, self.alternating = work, 0, since, alternating
        self.inner = nn.Linear(wide, wide)

    @property
    def on(self) -> bool:
        """Whether it does the other thing in this step."""
        return self.step % 2 == 1 if self.alternating else self.step >= self.since

    def forward(self, value: Any) -> Tensor:
        return self.work(self, value)


def time_first(module: nn.Module, x: Tensor) -> Tensor:
    """A recurrent layer on transposed views, on which torch computes then."""
    return module(x.transpose(0, 1))[0].transpose(0, 1)


def channels_first(module: nn.Module, x: Tensor) -> Tensor:
    """A layer of [n, C, T] for values of [n, T, C]; what it returns is not contiguous."""
    return module(x.transpose(1, 2)).transpose(1, 2)


# What a layer may do to how a tensor and its gradient lie in memory; [N, T, W] -> [N, T, W].
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda x: x.transpose(1, 2).tanh().transpose(1, 2),
    "time first": lambda x: x.transpose(0, 1).contiguous().tanh().transpose(0, 1),
    "rotated": lambda x: torch.cat([x[:, 1:], x[:, :1]], 1),
    "gaps": lambda x: torch.stack([x, -x], -1)[..., 0],
    "unaligned": lambda x: torch.cat([x.flatten()[:1], x.flatten()])[1:].view_as(x),
    "unaligned, with gaps": lambda x: nn.functional.pad(x, (1, 0))[..., 1:],
    "mean": lambda x: x + x.mean(1, keepdim=True),
    "repeated": lambda x: x.mean(1, keepdim=True).expand_as(x),
    "unbound": lambda x: torch.stack(x.unbind(1)[::-1], 1),
    "products": lambda x: x.tanh() @ x.tanh().transpose(1, 2) @ x / x.shape[-1],
    "in place": lambda x: (2.0 * x).relu_(),
    "itself": lambda x: x,
}
Blocks = Callable[[random.Random, int], list[nn.Module]]  # of a width


def stepwise(work: Callable[[Stepwise, Any], Tensor]) -> Blocks:
    """A layer that changes, at a step drawn by lot."""
    return lambda draw, wide: [
        Stepwise(work, wide, draw.randint(1, STEPS - 1), draw.random() < 0.3)
    ]


def writing(make: Blocks) -> Blocks:
    """Layers that write to their input, which the layer before must not need in its B."""
    return lambda draw, wide: [nn.Linear(wide, wide), *make(draw, wide)]


def encoder(draw: random.Random, wide: int) -> list[nn.Module]:
    """A transformer layer, perhaps frozen in part, perhaps in eval mode for good.

    In eval mode torch has a fast path for attention.
    """
    options: Any = {"batch_first": draw.random() < 0.5, "norm_first": draw.random() < 0.5}
    made: Any = nn.TransformerEncoderLayer(wide, 2, 2 * wide, 0.1, **options)
    if draw.random() < 0.5:
        made.self_attn.requires_grad_(False)
    return [Around(made, lambda m, x: m.eval()(x)) if draw.random() < 0.5 else made]


def recurrent(draw: random.Random, wide: int) -> list[nn.Module]:
    batch_first, both_ways = draw.random() < 0.5, draw.random() < 0.5
    kind, layers = draw.choice([nn.RNN, nn.LSTM, nn.GRU]), draw.choice([1, 2])
    width = wide // 2 if both_ways else wide
    made = kind(wide, width, layers, batch_first=batch_first, bidirectional=both_ways)
    made.requires_grad_(draw.random() < 0.8)
    return [Around(made, (lambda m, x: m(x)[0]) if batch_first else time_first)]


def two_heads(draw: random.Random, wide: int) -> list[nn.Module]:
    """Two heads, something that passes both on, and the layer that uses one of them."""
    between = [nn.Identity()] if draw.random() < 0.5 else []
    since, alternating = draw.randint(1, STEPS - 1), draw.random() < 0.7
    heads = nn.ModuleList(nn.Linear(wide, wide) for _ in range(2))
    both = Around(heads, lambda m, x: (m[0](x), m[1](x)))
    one = Stepwise(lambda s, pair: s.inner(pair[s.on]), wide, since, alternating)
    return [both, *between, one]


BLOCKS: dict[str, Blocks] = {
    "linear": lambda _, wide: [nn.Linear(wide, wide)],
    "frozen": lambda _, wide: [nn.Linear(wide, wide).requires_grad_(False)],
    "in place": writing(lambda *_: [nn.ReLU(inplace=True)]),
    "write": writing(lambda *_: [Apply(lambda x: x.add_(0.5))]),
    "layer norm": lambda _, wide: [nn.LayerNorm(wide)],
    "batch norm": lambda _, wide: [Around(nn.BatchNorm1d(wide), channels_first)],
    "convolution": lambda _, wide: [Around(nn.Conv1d(wide, wide, 3, padding=1), channels_first)],
    "dropout": lambda *_: [nn.Dropout(0.3)],
    "recurrent": recurrent,
    "encoder": encoder,
    "spectral norm": lambda _, wide: [parametrizations.spectral_norm(nn.Linear(wide, wide))],
    "detached at first": stepwise(lambda s, x: s.inner(x) if s.on else s.inner(x).detach()),
    "detached later": stepwise(lambda s, x: s.inner(x).detach() if s.on else s.inner(x)),
    "dropped": stepwise(lambda s, x: x if s.on else x + s.inner(x)),
    "in place later": writing(stepwise(lambda s, x: (x.mul_(0.5) if s.on else x) + s.inner(x))),
    # A layer that decides itself whether it is trained.
    "thawed inside": stepwise(lambda s, x: s.inner.requires_grad_(s.on)(x)),
    "two heads": two_heads,
    "view pair": lambda *_: [
        Apply(lambda x: (x, x[..., 1:3])),
        Apply(lambda pair: pair[0] + pair[1].sum(-1, keepdim=True)),
    ],
    "chunks": lambda _, wide: [
        nn.Linear(wide, 2 * wide),
        Apply(lambda x: x.chunk(2, -1)),
        Apply(lambda pair: (pair[0] * 1.0).mul_(0.5) + pair[1].sigmoid()),
    ],
    "constants": lambda *_: [
        Apply(lambda x: {"x": x, "nothing": None, "scale": 0.5}),
        Apply(lambda value: value["x"] * value["scale"]),
    ],
    "view": lambda draw, wide: [Apply(draw.choice([*VIEWS.values()])), nn.Linear(wide, wide)],
}
OPTIMIZERS: list[Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = [
    partial(torch.optim.SGD, lr=0.05),
    partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.1),
    # Some gradients are zero but for rounding (a key's bias in attention); Adam would make whole
    # steps of that.
    partial(torch.optim.AdamW, lr=0.01, eps=0.01),
]


def case(number: int) -> tuple[Model, PipelineConfig, torch.dtype]:
    """The network of this number and how it is trained."""
    draw = random.Random(number)
    dtype = draw.choice([torch.float32, torch.float64])
    wide = draw.choice([6, 8, 10, 16, 30])
    kinds = [draw.choice(list(BLOCKS)) for _ in range(draw.randint(1, 5))]
    tokens = draw.random() < 0.2
    state = torch.get_rng_state()
    torch.manual_seed(number)
    blocks = [module for kind in kinds for module in BLOCKS[kind](draw, wide)]
    if kinds[0] in ("in place", "write", "in place later") and draw.random() < 0.7:
        blocks = blocks[1:]  # straight to the inputs
    layers = [*([nn.Embedding(5, wide)] if tokens else []), *blocks, nn.Linear(wide, wide)]
    torch.set_rng_state(state)
    K, M = draw.randint(1, min(STAGES, len(layers))), draw.randint(1, 4)
    ends = sorted(draw.sample(range(1, len(layers)), K - 1))
    N = draw.randint(2 * M, 3 * M)  # batch norm needs two examples in each micro-batch
    generator = torch.Generator().manual_seed(number)
    batches = []
    for _ in range(STEPS):
        x, y = torch.randn(2, N, LENGTH, wide, generator=generator, dtype=dtype)
        batches.append((torch.randint(0, 5, (N, LENGTH), generator=generator) if tokens else x, y))
    # For a step the layer whose parameters are frozen or thawed before it.
    thaws = {step: draw.randrange(len(layers)) for step in range(1, STEPS) if draw.random() < 0.2}
    recompute = draw.choice(["always", "always", "except_last", "never"])
    split = ["zb-h1"] if recompute == "except_last" else ["zb-h1", "zb"]
    config = PipelineConfig(
        K,
        M,
        balance=tuple(b - a for a, b in zip([0, *ends], [*ends, len(layers)], strict=True)),
        recompute=recompute,
        schedule=draw.choice(["gpipe", "gpipe-late", "1f1b", "naive", *split]),
        transport=draw.choice(["auto", "gloo"]),
    )
    model = Model(
        [layer.to(dtype) for layer in layers],
        batches,
        optimizer=draw.choice(OPTIMIZERS),
        prepare=partial(prepare, thaws),
        accumulates=draw.random() < 0.3,
    )
    return model, config, dtype


def prepare(thaws: dict[int, int], step: int, whole: nn.Sequential) -> None:
    """What the user's program does before a step."""
    for name, layer in whole.named_children():
        for module in layer.modules():
            if isinstance(module, Stepwise):
                module.step = step
        if str(thaws.get(step)) == name:
            layer.requires_grad_(any(not p.requires_grad for p in layer.parameters()))
