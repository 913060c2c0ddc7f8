"""One comparison for every feature: a Pipeline in processes against the unsplit model.

split, alone = ("nested", PipelineConfig(2, 4)), ("nested", PipelineConfig(1, 4))
trained = launch_all([split, alone])
as_plain(trained[split], plain(*split))
same_bits(trained[split], trained[alone])
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import examples
import pytest
import random_networks
import torch
import torch.distributed as dist
from examples import Model, generator_states
from nccl_like import over
from torch import Tensor, nn

from repro.gpipe import NonFiniteError, Pipeline, PipelineConfig, Timeline, launch
from repro.gpipe.core import replicas
from repro.gpipe.core.compare import step_without_pipeline
from repro.gpipe.core.layers import build
from repro.gpipe.core.loss import Weighted
from repro.gpipe.exact import rng
from repro.gpipe.exact.batchnorm import is_torchs_own
from repro.gpipe.tree import flatten, split

SEED = 7
SCALER: dict[str, Any] = {"init_scale": 2.0**17, "growth_interval": 2}
Case = tuple[str | int, PipelineConfig]  # the name of a model, or the number of a random one
CPU = torch.device("cpu")


@dataclass
class Trained:
    """What came of a training: of one process, of all of them, or of plain PyTorch."""

    losses: list[float]  # of the steps; behind each, a clipped norm or the scale of the loss
    evaluation: float  # the loss after them
    initial: dict[str, Tensor]  # the state before the first step
    state: dict[str, Tensor]  # and after the last one
    gradients: dict[str, Tensor | None]  # of the last step
    timeline: Timeline | None = None  # of the last step


def regions(what: Model) -> Any:
    """What the user's loop is inside of."""
    return torch.autocast("cpu", dtype=what.autocast) if what.autocast else nullcontext()


def model(name: str | int) -> Model:
    return random_networks.case(name)[0] if isinstance(name, int) else examples.model(name)


def snapshot(module: nn.Module) -> dict[str, Tensor]:
    return {key: value.cpu().clone() for key, value in module.state_dict().items()}


def gradients_of(module: nn.Module) -> dict[str, Tensor | None]:
    return {key: None if p.grad is None else p.grad.cpu() for key, p in module.named_parameters()}


def optimizer_of(
    what: Model, module: nn.Module, last: torch.optim.Optimizer | None = None
) -> torch.optim.Optimizer | None:
    """Of all parameters, frozen ones included, since they may be thawed; the last if it has all."""
    parameters = [*module.parameters()]
    if last is not None and {*last.param_groups[0]["params"]} == {*parameters}:
        return last
    groups: Any = [{"params": parameters}]
    return what.optimizer(groups) if parameters or what.scaled else None


class Infinite(nn.Module):
    """A loss that is inf or nan, as its gradients are."""

    def __init__(self, loss: Any) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, outputs: Any, targets: Any) -> Tensor:
        return self.loss(outputs, targets) * torch.inf


def train(what: Model, pipe: Any, own_part: Callable[[Any], Any]) -> Trained:
    """The user's loop, with a Pipeline or with the unsplit model; on a part of each mini-batch."""
    initial = snapshot(pipe.module)
    optimizer = optimizer_of(what, pipe.module)
    scaler = pipe.grad_scaler(**SCALER) if what.scaled else None
    own_loop = what.accumulates or what.clip is not None
    losses, result, x, y = [], None, None, None
    for step, batch in enumerate(what.batches):
        what.prepare(step, pipe.module)
        optimizer = optimizer_of(what, pipe.module, optimizer)
        x, y = map(own_part, batch)
        if own_loop and (step % 2 == 0 or not what.accumulates):
            pipe.module.zero_grad()
        used = None if own_loop else optimizer
        if isinstance(pipe, Pipeline) and step % 2 == 0:
            infinite = Weighted(Infinite(what.loss), getattr(what.loss, "weight", len))
            with pytest.raises(NonFiniteError):  # as if it had not been
                pipe.train_step(x, y, infinite, used)
        result = pipe.train_step(x, y, what.loss, used, trace=True, scaler=scaler)
        losses.append(result.loss)
        losses += [] if scaler is None else [scaler.get_scale()]
        if what.clip is not None:
            losses.append(pipe.clip_grad_norm_(*what.clip).item())
            assert losses[-1] > 2 * what.clip[0], "it is clipped"
        if own_loop and optimizer is not None and (step % 2 or not what.accumulates):
            optimizer.step()
        if result.loss > 30 * max(losses[0], 1.0):
            break  # later steps would be inf in plain PyTorch too
    assert result is not None
    gradients, state = gradients_of(pipe.module), snapshot(pipe.module)
    evaluation = pipe.evaluate(x, y, what.loss).loss
    return Trained(losses, evaluation, initial, state, gradients, result.timeline)


def piped(name: str | int, config: PipelineConfig, device: str | None = "cpu") -> Trained:
    """This process's part of a training, which leaves the user's inputs and generators alone."""
    what = model(name)
    batches = deepcopy(what.batches)
    small_buckets = mock.patch.object(replicas, "BUCKET", 200)  # bytes: a weight, or two biases
    with over(config.transport) as transport, regions(what), small_buckets:
        before_all = generator_states()
        how = replace(config, transport=transport).arguments
        pipe = Pipeline(what.layers, **how, device=device, seed=SEED)
        found = train(what, pipe, lambda tree: split(tree, config.replicas)[pipe.replica])
        pipe.close()
        assert generator_states() == before_all, "the user's generators were moved"
        in_region = torch.is_autocast_enabled("cpu")
        assert in_region == (what.autocast is not None), "the user's region was left"
    inputs = [flatten(tree)[0] for tree in (batches, what.batches)]
    assert all(map(torch.equal, *inputs)), "the user's inputs were changed"
    return found


@contextmanager
def statistics_moved_once(model: nn.Module) -> Iterator[None]:
    """Let each norm's running statistics move by all that goes into it inside, at once."""
    norms: list[Any] = [m for m in model.modules() if m.training and is_torchs_own(m)]
    norms = [norm for norm in norms if norm.running_mean is not None]
    before = [deepcopy(norm._buffers) for norm in norms]
    seen: dict[Any, list[Tensor]] = {norm: [] for norm in norms}

    def note(norm: Any, args: tuple[Tensor, ...]) -> None:
        if norm.track_running_stats:
            seen[norm].append(args[0].detach())

    hooks = [norm.register_forward_pre_hook(note) for norm in norms]
    yield
    for hook in hooks:
        hook.remove()
    for norm, buffers in zip(norms, before, strict=True):
        if seen[norm]:
            norm._buffers.update(buffers)
            norm(torch.cat(seen[norm]))


class Unsplit:
    """The unsplit model in plain PyTorch, with the methods of a Pipeline.

    It is given the micro-batches and the random numbers that the Pipeline would have.
    """

    def __init__(self, what: Model, config: PipelineConfig) -> None:
        layers = (build(layer, n, SEED, CPU) for n, layer in enumerate(what.layers))
        self.module, self.step, self.config = nn.Sequential(*layers), 0, config
        self.region, self.grad_scaler = partial(regions, what), partial(torch.amp.GradScaler, "cpu")

    def run(self, inputs: Any, targets: Any, loss_fn: Any, seed: int, order: Any) -> float:
        """The loss of a mini-batch, whose gradients are set."""
        parts = zip(*(split(tree, self.config.replicas) for tree in (inputs, targets)), strict=True)
        given: Any = {"seed": seed, "step": self.step, "order": order, "region": self.region}
        M = self.config.micro_batches
        return step_without_pipeline(self.module, [*parts], M, loss_fn, **given)

    def train_step(
        self, inputs: Any, targets: Any, loss_fn: Any, optimizer: Any, *, scaler: Any, **_: Any
    ) -> SimpleNamespace:
        M = self.config.micro_batches
        # GPipe's backwards add up gradients from the last micro-batch to the first.
        order = range(M)[::-1] if self.config.schedule.startswith("gpipe") else range(M)
        former = gradients_of(self.module) if optimizer is None else {}
        scaler = scaler or self.grad_scaler(enabled=False)
        if scaler.is_enabled():
            loss_fn = Weighted(lambda *given, of=loss_fn: scaler.scale(of(*given)), len)
        with statistics_moved_once(self.module):
            loss = self.run(inputs, targets, loss_fn, SEED, order) / scaler.get_scale()
        for key, parameter in self.module.named_parameters():
            if (before := former.get(key)) is not None:
                added = parameter.grad
                parameter.grad = before if added is None else before + added
        if optimizer is not None:
            scaler.step(optimizer)
            scaler.update()
        self.step += 1
        return SimpleNamespace(loss=loss, timeline=None)

    def clip_grad_norm_(self, *limit: Any) -> Tensor:
        return nn.utils.clip_grad_norm_(self.module.parameters(), *limit)

    @torch.no_grad()
    def evaluate(self, inputs: Any, targets: Any, loss_fn: Any) -> SimpleNamespace:
        self.module.eval()
        seed = rng.hashed(SEED, self.step, rng.EVALUATION, 0)
        return SimpleNamespace(loss=self.run(inputs, targets, loss_fn, seed, ()))


def plain(name: str | int, config: PipelineConfig) -> Trained:
    """The same training without a Pipeline."""
    what = model(name)
    return train(what, Unsplit(what, config), lambda tree: tree)


def train_all(cases: Sequence[Case], device: str | None) -> list[Trained | None]:
    rank = dist.get_rank()
    return [piped(*case, device) if rank < case[1].processes else None for case in cases]


def joined(config: PipelineConfig, parts: Sequence[Trained | None]) -> Trained:
    """One model of the stages of the first replica; the other replicas have the same."""
    ranks = [part for part in parts if part is not None]
    assert len(ranks) == config.processes
    for rank, part in enumerate(ranks):
        first = ranks[rank % config.stages]
        assert same(part.state, first.state), f"replica of rank {rank}"
        assert (part.losses, part.evaluation) == (ranks[0].losses, ranks[0].evaluation)
        assert part.timeline == ranks[rank - rank % config.stages].timeline
    merged: dict[str, dict[str, Any]] = {"initial": {}, "state": {}, "gradients": {}}
    for part in ranks[: config.stages]:
        for what, members in merged.items():
            members.update(getattr(part, what))
    return replace(ranks[0], **merged)


def launch_all(cases: Sequence[Case], device: str | None = "cpu") -> dict[Case, Trained]:
    """Train all cases in the processes of one launch."""
    cases = list(dict.fromkeys(cases))
    ranks = launch(train_all, cases, device, stages=max(config.processes for _, config in cases))
    parts = zip(cases, *ranks, strict=True)
    return {case: joined(case[1], of_ranks) for case, *of_ranks in parts}


def reference(config: PipelineConfig) -> PipelineConfig:
    """The same order of backwards on one device, without recompute."""
    return PipelineConfig(
        1,
        config.micro_batches,
        config.replicas,
        recompute="never",
        schedule="gpipe" if config.schedule.startswith("gpipe") else "1f1b",
    )


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether they have the same tensors, to the bit."""
    return a.keys() == b.keys() and all(
        (x is None and b[key] is None) or (x is not None and torch.equal(x, b[key]))
        for key, x in a.items()
    )


def same_bits(found: Trained, expected: Trained, why: object = "") -> None:
    """A weight may hide the last bits of its gradient, so gradients are compared too."""
    assert found.losses == expected.losses, why
    assert found.evaluation == expected.evaluation, why
    for what in ("initial", "gradients", "state"):
        a, b = getattr(found, what), getattr(expected, what)
        assert a.keys() == b.keys(), why
        assert not [key for key in a if not same({key: a[key]}, {key: b[key]})], (what, why)


def as_plain(found: Trained, expected: Trained, *, rtol: float = 1e-4, atol: float = 1e-6) -> None:
    """The same but for rounding, gradients where the other has some, and keys in its order."""
    assert same(found.initial, expected.initial)
    # The order in which shares are added is not that of the pipeline.
    torch.testing.assert_close(found.losses, expected.losses, rtol=max(rtol, 1e-5), atol=1e-6)
    torch.testing.assert_close(
        found.evaluation, expected.evaluation, rtol=max(rtol, 1e-4), atol=1e-6
    )
    assert [*found.state] == [*expected.state]
    for key, value in expected.state.items():
        torch.testing.assert_close(
            found.state[key], value, rtol=rtol, atol=atol, msg=lambda m, k=key: f"{k}: {m}"
        )
    for key, value in expected.gradients.items():
        own = found.gradients[key]
        assert (own is None) == (value is None), key
        if own is not None:
            torch.testing.assert_close(own, value, rtol=rtol, atol=atol)
