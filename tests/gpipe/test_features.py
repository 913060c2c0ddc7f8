"""Clipping, loss scaling and accumulation as in plain PyTorch; what every rank refuses."""

import random
import tempfile
from collections.abc import Callable
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from examples import WIDTH, Apply, Around, linear
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from repro.gpipe import LinkSpeed, Pipeline, launch
from repro.gpipe.core.microbatch import sizes
from repro.gpipe.runtime.launch import StageError

N, M, D, STEPS = 7, 3, 2, 6
MSE = nn.functional.mse_loss
WAYS = [(1, 1), (3, 1), (2, D)]  # K, and copies of the pipeline
CUTS = {1: [5], 2: [2, 3], 3: [2, 2, 1]}
NORM_TYPES = {2.0: 0.1, float("inf"): 0.03}  # to a limit below the norms that occur
SCALER: dict[str, Any] = {"init_scale": 2.0**17, "growth_interval": 2}
SLOW = LinkSpeed(latency=0.005, bytes_per_second=1e6)


def batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    x, y = (torch.randn(D * N, WIDTH, generator=generator) for _ in range(2))
    return x, 3 * y


def own(pipe: Pipeline, step: int) -> tuple[Tensor, Tensor]:
    x, y = (t[pipe.replica * N : (pipe.replica + 1) * N] for t in batch(step))
    return x, y


def sgd(module: nn.Module | Pipeline, lr: float = 0.1) -> Optimizer:
    """Also of a stage without parameters."""
    return SGD([{"params": list(module.parameters())}], lr=lr)


def said(call: Callable[[], object]) -> str:
    try:
        call()
    except ValueError as error:
        return str(error)
    return "accepted"


# Clipping.


def clipped_model() -> nn.Sequential:
    """The first two layers share a weight, one has weights of another type, and one has none."""
    torch.manual_seed(2)
    shared, tied = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    tied.weight = shared.weight
    in_double = Around(linear().double(), lambda m, x: m(x.double()).float())
    return nn.Sequential(shared, tied, in_double, nn.Tanh(), linear())


def clipped(K: int, copies: int, norm_type: float) -> Any:
    pipe = Pipeline(clipped_model(), K, M, replicas=copies, device="cpu", balance=CUTS[K])
    optimizer, norms = sgd(pipe, lr=0.5), []
    for step in range(3):
        optimizer.zero_grad()
        pipe.train_step(*own(pipe, step), MSE)
        norms.append(pipe.clip_grad_norm_(NORM_TYPES[norm_type], norm_type))
        optimizer.step()
    pipe.close()
    return norms, dict(pipe.module.state_dict())


def clipped_plain(copies: int, norm_type: float) -> Any:
    module = clipped_model()
    optimizer, norms = sgd(module, lr=0.5), []
    for step in range(3):
        x, y = (t[: copies * N] for t in batch(step))
        optimizer.zero_grad()
        MSE(module(x), y).backward()
        limit = NORM_TYPES[norm_type]
        norms.append(nn.utils.clip_grad_norm_(module.parameters(), limit, norm_type))
        optimizer.step()
    return norms, dict(module.state_dict())


# Loss scaling.


def amplified(x: Tensor) -> Tensor:
    """Overflows float16 in the gradients of all layers before it."""
    if x.requires_grad:
        x = x.view_as(x)
        x.register_hook(lambda gradient: gradient * 2.0**7)
    return x


def scaled_model() -> nn.Sequential:
    torch.manual_seed(2)
    layers = nn.Sequential(linear(), Apply(amplified), linear(), nn.Tanh(), nn.Identity())
    with torch.no_grad():
        for p in layers.parameters():
            p /= 4
    return layers


def scaled(K: int, copies: int) -> Any:
    pipe = Pipeline(scaled_model(), K, M, replicas=copies, device="cpu", balance=CUTS[K])
    optimizer, scaler, found = sgd(pipe, lr=0.001), pipe.grad_scaler(**SCALER), []
    for step in range(STEPS):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = pipe.train_step(*own(pipe, step), MSE, optimizer, scaler=scaler).loss
        found.append((scaler.get_scale(), loss))
    pipe.close()
    return found, dict(pipe.module.state_dict())


def scaled_plain(copies: int) -> Any:
    module = scaled_model()
    optimizer, scaler, found = sgd(module, lr=0.001), torch.amp.GradScaler("cpu", **SCALER), []
    for step in range(STEPS):
        optimizer.zero_grad()
        total = 0.0
        for replica in range(copies):
            parts = [t[replica * N : (replica + 1) * N].split(sizes(N, M)) for t in batch(step)]
            for x, y in reversed(list(zip(*parts, strict=True))):
                with torch.autocast("cpu", dtype=torch.float16):
                    loss = MSE(module(x.clone()), y) * (len(x) / (copies * N))
                total += loss.item()
                scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        found.append((scaler.get_scale(), total))
    return found, dict(module.state_dict())


# What differs from the step in which inputs of a form came first, and what is refused.


class Draws(nn.Module):
    """Draws from Python's generator from its third call on."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.on = linear(), False

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * (random.random() if self.on else 1.0)


def drawn_later(K: int) -> tuple[list[Any], float]:
    """Losses where a layer begins to draw; the step in which it does is refused once."""
    torch.manual_seed(3)
    layer = Draws()
    pipe = Pipeline([linear(), layer], K, 2, balance="uniform", device="cpu")
    optimizer, losses, x = sgd(pipe), [], torch.ones(4, WIDTH)
    random.seed(7)
    for step in range(4):
        layer.on = step >= 2
        reason = said(lambda: losses.append(pipe.train_step(x, x, MSE, optimizer).loss))
        if reason != "accepted":
            assert "something drew from python's random numbers" in reason
            losses.append(pipe.train_step(x, x, MSE, optimizer).loss)
    pipe.close()
    return losses, random.random()


class Flickering(nn.Module):
    """Detaches its output in every other call."""

    calls = count()  # of the class, so that no step can put it back

    def __init__(self) -> None:
        super().__init__()
        self.inner = linear()

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        return y.detach() if next(self.calls) % 2 else y


def view(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 1.0
    return y, y[:, 1:3]


def writes_to_first(pair: tuple[Tensor, Tensor]) -> Tensor:
    return pair[0].mul_(2.0) + pair[1].sum(-1, keepdim=True)


def counting() -> nn.Module:
    """A layer that counts its calls in a list."""
    calls: list[int] = []
    return Apply(lambda x: x * len([*calls, calls.append(1)]))


def rows() -> nn.Module:
    """A learnt row of a table for each example."""
    table = nn.Embedding(2, WIDTH, sparse=True)
    return Around(table, lambda m, x: x + m((x[:, 0] > 0).long()))


OTHERS: dict[str, Callable[[nn.Sequential], object]] = {
    "append": lambda module: module.append(nn.Tanh()),
    "rename": lambda module: module.add_module("other", module.pop(0)),
}


def other_layers(case: str) -> dict[str, str]:
    """What a step and a save say where the first stage has other layers; then training goes on."""
    pipe = Pipeline([linear, linear], 2, M, balance=[1, 1], device="cpu")
    x, y = (t[:N] for t in batch(0))
    before = pipe.train_step(x, y, MSE).loss
    layers = dict(pipe.module.named_children())
    if pipe.is_first:
        OTHERS[case](pipe.module)
    folder = Path(tempfile.gettempdir(), "unwritten")
    found = {f"step, {case}": said(lambda: pipe.train_step(x, y, MSE))}
    found[f"save, {case}"] = said(lambda: pipe.save(folder))
    pipe.module._modules.clear()
    pipe.module._modules.update(layers)
    assert pipe.train_step(x, y, MSE).loss == before
    pipe.close()
    return found


def refusals() -> dict[str, str]:
    """What each of two ranks says; the same Pipelines go on where they can."""
    rank, (x, y), found = dist.get_rank(), (t[:N] for t in batch(0)), {}

    def pipeline(**options: Any) -> Pipeline:
        layers = [linear(), nn.Tanh(), linear()]
        return Pipeline(layers, 2, M, **({"device": "cpu", "balance": [2, 1]} | options))

    pipe = pipeline()
    optimizer = sgd(pipe)
    for name, call in {
        "no inputs": lambda: pipe.train_step(None, y, MSE),
        "optimizer here only": lambda: pipe.train_step(x, y, MSE, optimizer if rank else None),
        "limits differ": lambda: pipe.clip_grad_norm_(1.0 + rank),
        "limit": lambda: pipe.clip_grad_norm_(-1.0 if rank else 1.0),
    }.items():
        found[name] = said(call)
    pipe.train_step(x, y, MSE, optimizer)
    found["clips late"] = said(lambda: pipe.clip_grad_norm_(1.0))
    scaler = pipe.grad_scaler(init_scale=8.0 + rank)
    found["scales differ"] = said(lambda: pipe.train_step(x, y, MSE, optimizer, scaler=scaler))
    pipe.close()
    found["transport"] = said(lambda: pipeline(transport="tcp"))
    found["unlike"] = said(lambda: pipeline(seed=rank))
    layers = nn.Sequential(Flickering(), linear())
    flickering = Pipeline(layers, 2, 2, balance=[1, 1], device="cpu")
    found["flickers"] = said(lambda: flickering.train_step(x[:4], y[:4], MSE))
    found["weights of another stage"] = said(layers.state_dict)
    for case in OTHERS:
        found |= other_layers(case)
    return found


def ends(what: str) -> None:
    layers, K = {
        "writes to a view": ([Apply(view), Apply(writes_to_first)], 2),
        "sparse": ([rows], 1),
        "state in a list": ([counting(), linear], 2),
    }[what]
    pipe = Pipeline(layers, K, M, replicas=2 // K, device="cpu", balance="uniform")
    x, y = (t[:N] for t in batch(0))
    pipe.train_step(x, y, MSE)


def throttled() -> tuple[float, float, float]:
    """Seconds of a step over slow links, and what is measured of such a link."""
    layers = [nn.Identity(), nn.Linear(2500, 1)]
    pipe = Pipeline(layers, 2, 2, balance=[1, 1], throttle=SLOW, device="cpu")
    x, y = torch.zeros(2, 2500), torch.zeros(2, 1)
    pipe.train_step(x, y, MSE)
    seconds = pipe.train_step(x, y, MSE, trace=True).seconds
    speed = pipe.engine.links.speed()
    pipe.close()
    return seconds, speed.latency, speed.bytes_per_second


def everything() -> dict[Any, Any]:
    rank, found = dist.get_rank(), dict[Any, Any]()
    for K, copies in WAYS:
        if rank < K * copies:
            found |= {("clipped", K, copies, t): clipped(K, copies, t) for t in NORM_TYPES}
            found["scaled", K, copies] = scaled(K, copies)
    for K in (2, 1):
        if rank < K:
            found["drawn", K] = drawn_later(K)
    if rank < 2:
        found["refused"] = refusals()
        found["throttled"] = throttled()
    return found


@pytest.fixture(scope="module")
def ran():
    return launch(everything, stages=4)


@pytest.mark.parametrize("norm_type", NORM_TYPES)
@pytest.mark.parametrize(("K", "copies"), WAYS)
def test_clipping_is_torchs_with_the_same_bits_for_every_k(ran, K, copies, norm_type):
    """Shared parameters count once, other number formats too, replicas not twice."""
    norms, state = clipped_plain(copies, norm_type)
    assert all(norm > 2 * NORM_TYPES[norm_type] for norm in norms)
    one = ran[0]["clipped", 1, 1, norm_type]
    for rank in range(K * copies):
        found = ran[rank]["clipped", K, copies, norm_type]
        torch.testing.assert_close(found[0], norms, rtol=1e-5, atol=0)
        if copies == 1:
            assert all(map(torch.equal, found[0], one[0]))
            assert all(torch.equal(value, one[1][key]) for key, value in found[1].items())
        for key, value in found[1].items():
            torch.testing.assert_close(value, state[key], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("K", "copies"), WAYS)
def test_loss_scaling_is_torchs(ran, K, copies):
    """An inf on one stage skips the update on all."""
    steps, state = scaled_plain(copies)
    scales = [SCALER["init_scale"], *(scale for scale, _ in steps)]
    skipped = [b < a for a, b in pairwise(scales)]
    assert any(skipped)
    assert not all(skipped)
    for rank in range(K * copies):
        found, own_state = ran[rank]["scaled", K, copies]
        for (scale, loss), (its_scale, its_loss) in zip(found, steps, strict=True):
            assert scale == its_scale
            assert loss == pytest.approx(its_loss, rel=1e-5)
        for key, value in own_state.items():
            torch.testing.assert_close(value, state[key], rtol=1e-4, atol=1e-6)


def test_a_layer_that_begins_to_draw_is_refused_once_and_then_seeded(ran):
    found = [value for rank in ran for key, value in rank.items() if key[0] == "drawn"]
    assert len(found) == 3
    assert {tuple(losses) for losses, _ in found} == {tuple(found[0][0])}
    assert {number for _, number in found} == {found[0][1]}, "the user's generator has moved"


REFUSALS = {
    "no inputs": "inputs: None, but this stage reads them",
    "optimizer here only": "optimizer: some ranks got one and others",
    "limits differ": "'max_norm': 2.0, 'norm_type': 2.0} on rank 1",
    "limit": "max_norm=-1.0, norm_type=2.0: must be numbers",
    "clips late": "train_step has updated the weights already",
    "scales differ": "scaler: {'scale': 9.0} on rank 1, but {'scale': 8.0} on rank 0",
    "transport": "transport='tcp': choose one of auto, shm, gloo",
    "unlike": "seed=1 on rank 1, but 0 on rank 0",
    "weights of another stage": ", which trains it; use pipe.predict or pipe.evaluate in place",
    "flickers": "a layer must do the same both times",
    **dict.fromkeys(("step, append", "step, rename"), "pipe.module: its layers are "),
    **dict.fromkeys(("save, append", "save, rename"), ": pipe.module: its layers are "),
}


def test_what_is_refused_is_refused_on_every_rank_in_one_line(ran):
    for rank in (0, 1):
        for what, words in REFUSALS.items():
            assert words in ran[rank]["refused"][what]
            assert "\n" not in ran[rank]["refused"][what]


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("writes to a view", r"tensor 0 of what enters it, and another one there .*clone\(\)"),
        ("sparse", r"a sparse gradient of shape \(2, \d\) .*sparse=False"),
        ("state in a list", "its outputs are not the same when a micro-batch is recomputed"),
    ],
)
def test_what_ends_all_ranks(what, words):
    with pytest.raises(StageError, match=words):
        launch(ends, what, stages=2)


def test_a_throttled_link_takes_what_arithmetic_says_and_is_measured_so(ran):
    """Two messages of 10 kB one after the other, and the gradient of none comes back."""
    seconds, latency, speed = ran[0]["throttled"]
    assert seconds >= 2 * 0.01 + SLOW.latency
    assert latency == pytest.approx(SLOW.latency, rel=0.5)
    assert speed == pytest.approx(SLOW.bytes_per_second, rel=0.2)
