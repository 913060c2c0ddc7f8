"""What the processes of `test_replicas.py` run; at module level so that they can import it."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from repro.gpipe import Pipeline, Weighted
from repro.gpipe.core import replicas
from repro.gpipe.core.layers import Layer
from repro.gpipe.schedule.actions import Cell

WIDTH, M, D, STEPS = 6, 2, 2, 3
ROWS = 12  # of a table
EXAMPLES = (7, 4)  # of the two replicas
SMALL_BUCKET = 200  # bytes: a weight, or two biases
PLAIN = nn.functional.mse_loss


def weight(targets: Tensor) -> Tensor:
    """How many rows count."""
    return (targets[:, 0] > 0).sum()


def masked_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean over the rows that count."""
    rows = targets[:, 0] > 0
    return nn.functional.mse_loss(outputs[rows], targets[rows])


WEIGHTED = Weighted(masked_loss, weight)


def linear() -> nn.Module:
    """The factory of a plain layer."""
    return nn.Linear(WIDTH, WIDTH)


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


def model(name: str) -> list[Layer]:
    """Three layers or four."""
    # in float64, since the norm of two examples magnifies what rounding does
    exact: list[Layer] = [
        lambda: linear().double(),
        lambda: nn.BatchNorm1d(WIDTH).double(),
        lambda: linear().double(),
        lambda: nn.BatchNorm1d(WIDTH, momentum=None).double(),
    ]
    return {
        "plain": [linear, nn.Tanh, linear, linear],
        "norm": exact,
        "noisy": [linear, lambda: nn.Dropout(0.5), lambda: nn.BatchNorm1d(WIDTH), linear],
        "branches": [Branches, nn.Tanh, linear],
    }[name]


def batch(name: str, replica: int) -> tuple[Tensor, Tensor]:
    """One replica's own mini-batch."""
    generator = torch.Generator().manual_seed(10 + replica)
    n = 8 if name == "noisy" else EXAMPLES[replica]
    dtype = torch.float64 if name == "norm" else torch.float32
    x, y = (torch.randn(n, WIDTH, generator=generator, dtype=dtype) for _ in range(2))
    if name == "branches":
        x[:, 0] = x[:, 0].abs() * (1 - 2 * replica)
    return x, y


CASES: dict[str, tuple[str, Callable[..., Tensor]]] = {
    "plain": ("plain", PLAIN),
    "weighted": ("plain", WEIGHTED),
    "norm": ("norm", PLAIN),
    "noisy": ("noisy", PLAIN),
    "branches": ("branches", PLAIN),
}


def optimizer_of(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """One that tells no gradient from a gradient of zeros."""
    return torch.optim.SGD(parameters, lr=0.2, momentum=0.9, weight_decay=0.1)


def train(case: str, stages: int, checkpoint: str = "always") -> dict[str, Any]:
    """Three steps on this replica's own mini-batch and a fourth one's evaluation."""
    name, loss_fn = CASES[case]
    pipe = Pipeline(
        model(name),
        stages,
        M,
        replicas=D,
        balance="uniform",
        checkpoint=checkpoint,
        device="cpu",
        seed=4,
    )
    optimizer = optimizer_of(list(pipe.parameters()))
    own = batch(name, pipe.replica)
    losses = [pipe.train_step(*own, loss_fn, optimizer).loss for _ in range(STEPS)]
    evaluation = pipe.evaluate(*own, loss_fn)
    pipe.close()
    gradients = {key: p.grad for key, p in pipe.module.named_parameters()}
    state = dict(pipe.module.state_dict())
    return {"losses": losses, "evaluation": evaluation.loss, "state": state, "gradients": gradients}


def accumulated(stages: int) -> dict[str, Tensor]:
    """Gradients after two steps without an optimizer, the caller's own of 1 included."""
    pipe = Pipeline(model("plain"), stages, M, replicas=D, balance="uniform", device="cpu", seed=4)
    for parameter in pipe.parameters():
        parameter.grad = torch.ones_like(parameter)
    for _ in range(2):
        pipe.train_step(*batch("plain", pipe.replica), PLAIN)
    pipe.close()
    return {key: p.grad for key, p in pipe.module.named_parameters() if p.grad is not None}


def _replace(pipe: Pipeline) -> None:
    torch.manual_seed(3)
    pipe.module[2].weight = nn.Parameter(torch.randn(WIDTH, WIDTH))


CHANGES: dict[str, Callable[[Pipeline], object]] = {
    "replaced": _replace,
    "weight norm": lambda pipe: nn.utils.parametrizations.weight_norm(pipe.module[2]),
    "thawed": lambda pipe: pipe.module[2].requires_grad_(True),
}


def changed(case: str, replicas: int, *, late: bool) -> tuple[list[float], dict[str, Tensor]]:
    """Losses and weights where parameters change once the Pipeline is built, or one step later.

    A single replica gets the mini-batches of all of them.
    """
    pipe = Pipeline(model("plain"), 1, M * D // replicas, replicas=replicas, device="cpu", seed=4)
    pipe.module[2].requires_grad_(case != "thawed")
    parts = [batch("noisy", d) for d in range(D)]
    whole = [torch.cat(pair) for pair in zip(*parts, strict=True)]
    x, y = parts[pipe.replica] if replicas > 1 else whole
    losses = []
    for step in range(STEPS):
        if step == late:
            CHANGES[case](pipe)
        losses.append(pipe.train_step(x, y, PLAIN, optimizer_of(list(pipe.parameters()))).loss)
    pipe.close()
    return losses, {key: value.detach().clone() for key, value in pipe.module.state_dict().items()}


def all_changes() -> dict[tuple[str, bool], Any]:
    """Every change of parameters, at once and late."""
    return {(case, late): changed(case, D, late=late) for case in CHANGES for late in (False, True)}


class Recording:
    """A process group that notes what is summed, and when."""

    def __init__(self, group: Any, events: list[Any]) -> None:
        self._group, self._events = group, events

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    def allreduce(self, tensors: list[Tensor]) -> dist.Work:
        """Note the numbers of elements."""
        self._events.append(tensors[0].numel())
        return self._group.allreduce(tensors)


def bucketed(stages: int) -> tuple[list[Any], dict[str, Tensor]]:
    """What the last backward of a step did, with small buckets; and the gradients."""
    events: list[Any] = []
    before, replicas.BUCKET = replicas.BUCKET, SMALL_BUCKET
    pipe = Pipeline(model("plain"), stages, M, replicas=D, balance="uniform", device="cpu", seed=4)
    copies = pipe.engine.replicas
    assert copies is not None
    copies._group = Recording(copies._group, events)
    backward = pipe.held.backward

    def noted(cell: Cell, gradients: list[Tensor | None] | None) -> list[Tensor | None]:
        events.append("B begins")
        result = backward(cell, gradients)
        events.append("B ends")
        return result

    pipe.held.backward = noted
    pipe.train_step(*batch("plain", pipe.replica), PLAIN)
    pipe.close()
    replicas.BUCKET = before
    return events, {key: p.grad for key, p in pipe.module.named_parameters() if p.grad is not None}


def refused() -> None:
    """Weights are wrong on one replica."""
    loss = Weighted(PLAIN, lambda _targets: -1.0 if dist.get_rank() else 1.0)
    pipe = Pipeline([linear], 1, M, replicas=D, device="cpu")
    pipe.train_step(*batch("plain", pipe.replica), loss)


class Rows(nn.Module):
    """A learnt row of a table for each example."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(2, WIDTH, sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table((x[:, 0] > 0).long())


def sparse() -> None:
    """The gradient of a table is sparse."""
    pipe = Pipeline([Rows], 1, M, replicas=D, device="cpu")
    pipe.train_step(*batch("plain", pipe.replica), PLAIN)


def everything() -> dict[Any, Any]:
    """K = 2 on four processes, K = 1 on two of them."""
    rank = dist.get_rank()
    found: dict[Any, Any] = {}
    for K in (2, 1):
        if rank < K * D:
            found.update({(case, K): train(case, K) for case in CASES})
            found["accumulated", K] = accumulated(K)
            found["bucketed", K] = bucketed(K)
    if rank < D:
        found["noisy", "never"] = train("noisy", 1, "never")
    return found
