"""Functions of the stage processes of `test_crossings.py`, which spawned processes can import."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from repro.gpipe import Pipeline, Weighted
from repro.gpipe.core.layers import Layer

N, M, WIDTH, CLASSES, PAD = 10, 4, 6, 5, 0
CASES = ((1, "never"), (1, "always"), (2, "always"), (3, "always"), (3, "never"))


def linear() -> nn.Module:
    """The factory of a plain layer."""
    return nn.Linear(WIDTH, WIDTH)


def frozen() -> nn.Module:
    """The same, not trained."""
    return linear().requires_grad_(False)


def in_place() -> nn.Module:
    """Overwrites its input."""
    return nn.ReLU(inplace=True)


class Apply(nn.Module):
    """A function as a layer, with a linear layer before it where asked."""

    def __init__(self, function: Callable[[Any], Any], linear_first: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH) if linear_first else nn.Identity()
        self.function = function

    def forward(self, value: Any) -> Any:
        return self.function(self.linear(value))


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


def _constants(x: Tensor) -> tuple:
    return x, None, 2, [True, "name", 0.5], {"dtype": torch.float32}


def _use_constants(value: tuple) -> Tensor:
    x, nothing, number, (flag, name, half), kinds = value
    assert nothing is None
    assert flag
    assert name == "name"
    return (x * number * half).to(kinds["dtype"])


def layer(function: Callable[[Any], Any], *, linear_first: bool = False) -> Callable[[], nn.Module]:
    """A factory of `Apply`."""
    return lambda: Apply(function, linear_first)


def classes() -> nn.Module:
    """The factory of a last layer for tokens."""
    return nn.Linear(WIDTH, CLASSES)


MODELS: dict[str, list[Layer]] = {
    "frozen front": [frozen, linear, linear],
    "frozen middle": [linear, frozen, linear],
    "frozen end": [linear, linear, frozen],
    "one trained behind": [frozen, frozen, linear],
    "one trained in front": [linear, frozen, frozen],
    "none trained": [frozen, frozen, frozen],
    "no parameters behind": [linear, nn.Tanh, nn.Sigmoid],
    "no parameters in front": [nn.Tanh, nn.Sigmoid, linear],
    "in place": [layer(lambda x: x.add_(0.5)), in_place, linear],
    "in place behind": [linear, layer(lambda x: x.add_(0.5)), in_place],
    "detached": [linear, layer(lambda x: x.detach()), linear],
    "twice": [layer(lambda x: (x, {"again": x}), linear_first=True), nn.Identity, layer(_same)],
    "twice in place": [layer(lambda x: (x, {"again": x})), layer(_same), linear],
    "view": [
        layer(lambda x: (x, x[:, 1:4]), linear_first=True),
        nn.Identity,
        layer(lambda v: v[0].sum(1, True) * v[1]),
    ],
    "chunks": [
        layer(lambda x: x.chunk(2, 1), linear_first=True),
        nn.Identity,
        layer(lambda v: v[0] * v[1]),
    ],
    "expanded": [layer(lambda x: x[:, :1].expand(-1, 6), linear_first=True), nn.Identity, linear],
    "transposed": [
        layer(lambda x: x.t(), linear_first=True),
        nn.Identity,
        layer(lambda x: x.t().tanh()),
    ],
    "mixed": [layer(_mixed, linear_first=True), nn.Identity, layer(_use_mixed)],
    "constants": [layer(_constants, linear_first=True), nn.Identity, layer(_use_constants)],
    "halves": [
        layer(lambda x: x.bfloat16(), linear_first=True),
        nn.Identity,
        layer(lambda x: x.float()),
    ],
    "lengths": [linear, nn.Tanh, linear],
    "tokens": [linear, nn.Tanh, classes],
}


def token_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean over the tokens that are not padding, NaN if all are."""
    return nn.functional.cross_entropy(outputs.flatten(0, -2), targets.flatten(), ignore_index=PAD)


def batches(name: str) -> list[tuple[Tensor, Tensor]]:
    """The mini-batches of one case."""
    generator = torch.Generator().manual_seed(6)
    if name not in ("lengths", "tokens"):
        x = torch.randn(N, WIDTH, generator=generator)
        y = torch.randn(N, {"view": 3, "chunks": 3}.get(name, WIDTH), generator=generator)
        return [(x, y)] * 3
    made = []
    for n, length in ((N, 3), (N, 5), (7, 5), (N, 3), (4, 1)):
        x = torch.randn(n, length, WIDTH, generator=generator)
        tokens = torch.randint(1, CLASSES, (n, length), generator=generator)
        tokens[n // 3 : n // 2 + 1] = PAD
        made.append((x, tokens if name == "tokens" else torch.randn(x.shape, generator=generator)))
    return made


def loss_of(name: str) -> Callable[..., Tensor]:
    """The loss of one case."""
    return (
        Weighted(token_loss, lambda y: (y != PAD).sum())
        if name == "tokens"
        else nn.functional.mse_loss
    )


def train(name: str, stages: int, checkpoint: str) -> dict[str, Any]:
    """Losses, evaluations and this stage's last gradients; the inputs stay as they were."""
    pipe = Pipeline(
        MODELS[name], stages, M, checkpoint=checkpoint, balance="uniform", device="cpu", seed=2
    )
    trained = [p for p in pipe.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1, weight_decay=0.1) if trained else None
    losses, evaluations = [], []
    for x, y in batches(name):
        before = x.clone()
        losses.append(pipe.train_step(x, y, loss_of(name), optimizer).loss)
        evaluations.append(pipe.evaluate(x, y, loss_of(name)).loss)
        assert torch.equal(x, before), "the user's own"
    pipe.close()
    gradients = {key: p.grad for key, p in pipe.module.named_parameters()}
    return {"losses": losses, "evaluations": evaluations, "gradients": gradients}


def everything() -> dict[Any, Any]:
    """All models in all cases."""
    rank = dist.get_rank()
    found: dict[Any, Any] = {}
    for name in MODELS:
        for K, checkpoint in CASES:
            if rank < K:
                found[name, K, checkpoint] = train(name, K, checkpoint)
    return found
