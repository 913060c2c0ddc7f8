"""A step with inf or nan, or one that fails, changes nothing; its cause is named on every rank."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from compare import gradients_of, same
from examples import WIDTH, M, Means, N, linear
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from repro.gpipe import NonFiniteError, Pipeline, Weighted, launch
from repro.gpipe.runtime.status import status

LAYERS = 4
BAD = 1  # the micro-batch that goes wrong, of examples 3 to 5
# added to the layer's index, it is that layer's order
HOW = {"forward": 0.0, "backward": 0.25, "summed": 0.5, "F raises": 0.75, "R raises": 0.875}
LOSS = -2.0
ORDERS = [("forward", 0), ("forward", 2), ("backward", 1), ("backward", 3)]
ORDERS += [("loss", 0), ("inputs", 0), ("targets", 0), ("summed", 1)]
CASES = {  # of K, schedule, recompute and replicas the orders, one after the other
    (1, "gpipe", "always", 1): ORDERS[1:5],
    (3, "gpipe", "always", 1): ORDERS,
    (2, "gpipe-late", "always", 1): [("backward", 1), ("forward", 2)],
    (2, "1f1b", "except_last", 1): [("forward", 3), ("backward", 0), ("loss", 0)],
    (2, "gpipe", "always", 2): [("forward", 2), ("backward", 1), ("loss", 0), ("summed by all", 1)],
}


def spoilt(x: Tensor, value: float) -> Tensor:
    """The same, whose gradient becomes this number."""
    x = x.clone()
    if x.requires_grad:
        x.register_hook(lambda gradient: torch.full_like(gradient, value))
    return x


class Link(nn.Module):
    """Everything that a refused step must not change; the inputs' first column is a command."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index, self.shift = index, nn.Parameter(torch.zeros(WIDTH))
        norm = nn.BatchNorm1d(WIDTH, momentum=None)
        self.inner = nn.Sequential(spectral_norm(linear()), norm, nn.Dropout(0.3), Means())

    def forward(self, value: Tensor) -> Tensor:
        order, x = value[:, :1], value[:, 1:]
        ordered = {kind: bool((order == self.index + how).any()) for kind, how in HOW.items()}
        x = self.inner(x).tanh()
        if status.action and ordered.get(f"{status.action.kind} raises"):
            raise RuntimeError("not today")
        x = x + (spoilt(self.shift, 3e38) if ordered["summed"] else self.shift)
        x = spoilt(x, float("inf")) if ordered["backward"] else x
        return torch.cat([order, x * float("inf") if ordered["forward"] else x], dim=1)


def ordered_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """A mean that is infinite where that was ordered; its gradient is not."""
    loss = nn.functional.mse_loss(outputs[:, 1:], targets)
    return loss + float("inf") if (outputs[:, 0] == LOSS).any() else loss


loss_fn = Weighted(ordered_loss, len)


def batch(kind: str = "good", n: int = 0, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Ten examples, which M = 4 cuts into 3, 3, 2 and 2; one of the second part gives the order."""
    generator = torch.Generator().manual_seed(seed)
    inputs, targets = (torch.randn(N, WIDTH, generator=generator) for _ in range(2))
    orders = torch.full((N, 1), -1.0)
    if kind in HOW:
        orders[[4, 7] if kind == "summed" else 4] = n + HOW[kind]
    elif kind == "summed by all":  # each replica's one half of it
        orders[4] = n + HOW["summed"]
    elif kind == "loss":
        orders[4] = LOSS
    elif kind in ("inputs", "targets"):
        (inputs if kind == "inputs" else targets)[4, 2] = float("nan")
    return torch.cat([orders, inputs], dim=1), targets


def pipeline(K: int, schedule: str, recompute: str, replicas: int) -> Pipeline:
    how: Any = {"schedule": schedule, "recompute": recompute, "replicas": replicas}
    layers = [partial(Link, n) for n in range(LAYERS)]
    return Pipeline(layers, K, M, balance="uniform", device="cpu", **how)


def refusals(*how: Any) -> list[str]:
    """What is said of each order; each comes before a good step, the first one before any."""
    pipe, said = pipeline(*how), []
    optimizer = torch.optim.SGD(pipe.parameters(), lr=0.1, momentum=0.9)
    for step, (kind, n) in enumerate(CASES[how]):
        obeys = kind == "summed by all" or pipe.replica == pipe.replicas - 1
        with pytest.raises(NonFiniteError) as caught:
            pipe.train_step(*batch(kind if obeys else "good", n, seed=9), loss_fn, optimizer)
        said.append(str(caught.value))
        pipe.train_step(*batch(seed=step + 10 * pipe.replica), loss_fn, optimizer)
    pipe.close()
    return said


def everything() -> dict[Any, list[str]]:
    rank = dist.get_rank()
    return {case: refusals(*case) for case in CASES if rank < case[0] * case[3]}


LAYERS_OF = {1: [0, 0, 0, 0], 2: [0, 0, 1, 1], 3: [0, 0, 1, 2]}  # the stage of each layer


def cause(step: int, K: int, kind: str, n: int, replica: str) -> str:
    """What every rank should say, without the advice."""
    what, stage = {
        "inputs": ("the inputs", 0),
        "targets": ("the targets", K - 1),
        "loss": ("outputs or loss", K - 1),
        "forward": ("outputs or loss", K - 1),
    }.get(kind, ("the gradients", LAYERS_OF[K][n]))
    which = "" if what == "the gradients" else f" of micro-batch {BAD}"
    return f"step {step}: {what}{which} on {replica}stage {stage} are inf or nan"


def test_every_rank_names_the_cause():
    """Nothing has changed: test_compare.py has refused steps in all trainings."""
    ran = launch(everything, stages=4)
    for (K, *how, replicas), orders in CASES.items():
        for found in ran[: K * replicas]:
            said = found[(K, *how, replicas)]
            for step, (kind, n) in enumerate(orders):
                # Gradients are summed before they are looked at.
                which = int(kind in ("forward", "loss"))
                replica = f"replica {which}, " if replicas > 1 else ""
                assert said[step].startswith(cause(step, K, kind, n, replica))
                assert said[step].endswith("; without=['NonFinite'] trains on")


def test_an_evaluation_is_not_checked():
    pipe = pipeline(1, "gpipe", "always", 1)
    assert pipe.evaluate(*batch("loss"), loss_fn).loss == float("inf")


class Widest(nn.Module):
    """Parameters of several dtypes, one with sparse gradients."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(4, 4, sparse=True)
        kinds = torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.complex128
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(4, dtype=kind)) for kind in kinds)

    def forward(self, x):
        for scale in self.scales:
            x = x * (scale.conj() * scale).real
        return x + self.table(torch.arange(x.shape[0]) % 4)


def test_a_step_with_gradients_of_every_type():
    pipe = Pipeline([Widest], 1, 2, device="cpu")
    x = torch.rand(4, 4, dtype=torch.float64)
    pipe.train_step(x, x, nn.functional.mse_loss)
    assert all(p.grad is not None and p.grad.dtype == p.dtype for p in pipe.parameters())
    with pytest.raises(NonFiniteError):
        pipe.train_step(x * torch.inf, x, nn.functional.mse_loss)


@pytest.mark.parametrize("kind", ["forward", "F raises", "R raises"])
def test_a_step_that_fails_leaves_no_trace(kind):
    """The next step is as if it had not been: it adds to the gradients that there were."""
    pipe, good = (pipeline(1, "gpipe", "always", 1) for _ in range(2))
    for each in (pipe, good):
        each.train_step(*batch(), loss_fn)
    given = [p.grad for p in pipe.parameters()]
    hooks = [len(module._forward_hooks) for module in pipe.module.modules()]
    with pytest.raises((NonFiniteError, RuntimeError), match=r"not today|inf or nan"):
        pipe.train_step(*batch(kind, n=2), loss_fn)
    assert all(p.grad is its for p, its in zip(pipe.parameters(), given, strict=True))
    assert [len(module._forward_hooks) for module in pipe.module.modules()] == hooks
    for each in (pipe, good):
        each.train_step(*batch(seed=1), loss_fn)
    assert same(pipe.module.state_dict(), good.module.state_dict())
    assert same(gradients_of(pipe.module), gradients_of(good.module))


class Box:
    """An object that a layer holds."""

    calls = 0


class Counting(nn.Linear):
    """Counts in it; its first forward gives it an attribute."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)
        self.box = Box()

    def forward(self, x: Tensor) -> Tensor:
        self.box.calls += 1
        return super().forward(x) / self.box.calls


@pytest.mark.parametrize("recompute", ["never", "always"])
def test_a_refused_step_keeps_what_an_earlier_one_made_in_an_object(recompute):
    layer, x = Counting(), torch.ones(4, WIDTH)
    pipe = Pipeline([layer], 1, 2, device="cpu", recompute=recompute)
    for calls in (2, 4):
        pipe.train_step(x, x, nn.functional.mse_loss)
        with pytest.raises(NonFiniteError):
            pipe.train_step(torch.inf * x, x, nn.functional.mse_loss)
        assert layer.box.calls == calls
