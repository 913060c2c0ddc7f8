"""One comparison for every feature: a Pipeline in processes against the unsplit model.

split, alone = ("nested", PipelineConfig(2, 4)), ("nested", PipelineConfig(1, 4))
trained = launch_all([split, alone])
as_plain(trained[split], plain(*split))
same_bits(trained[split], trained[alone])
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import examples
import random_networks
import torch
import torch.distributed as dist
from examples import Model, generator_states
from nccl_like import over
from torch import Tensor, nn

from repro.gpipe import Pipeline, PipelineConfig, StepResult, Timeline, Weighted, launch
from repro.gpipe.core.layers import build
from repro.gpipe.core.microbatch import batch_size, flatten, split
from repro.gpipe.exact import rng

SEED = 7
Case = tuple[str | int, PipelineConfig]  # the name of a model, or the number of a random one
CPU = torch.device("cpu")
_STATISTICS = "running_mean", "running_var", "num_batches_tracked"


@dataclass
class Trained:
    """What came of a training: of one process, of all of them, or of plain PyTorch."""

    losses: list[float]  # of the steps
    evaluation: float  # the loss after them
    initial: dict[str, Tensor]  # the state before the first step
    state: dict[str, Tensor]  # and after the last one
    gradients: dict[str, Tensor | None]  # of the last step
    timeline: Timeline | None = None  # of the last step


def regions(what: Model) -> Any:
    """What the user's loop is inside of."""
    return torch.autocast("cpu", dtype=torch.bfloat16) if what.autocast else nullcontext()


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
    return what.optimizer(parameters) if parameters else None


def diverges(losses: list[float]) -> bool:
    """Whether training ends here, since later steps would be inf in plain PyTorch too."""
    return losses[-1] > 30 * max(losses[0], 1.0)


def loss_of_step(pipe: Pipeline, *step: Any) -> StepResult:
    """Once more where the step was refused because a layer has changed."""
    for _ in range(4):
        try:
            return pipe.train_step(*step, trace=True)
        except ValueError as error:
            if "can be called again" not in str(error):
                raise
    raise RuntimeError("refused again and again")


def piped(name: str | int, config: PipelineConfig, device: str | None = "cpu") -> Trained:
    """This process's part of a training, which leaves the user's inputs and generators alone."""
    what = model(name)
    with over(config.transport) as transport, regions(what):
        before_all = generator_states()
        pipe = Pipeline(what.layers, config, transport=transport, device=device, seed=SEED)
        initial = snapshot(pipe.module)
        optimizer = optimizer_of(what, pipe.module)
        losses, result, x, y = [], None, None, None
        for step, (inputs, targets) in enumerate(what.batches):
            what.prepare(step, pipe.module)
            optimizer = optimizer_of(what, pipe.module, optimizer)
            x, y = (split(t, config.replicas)[pipe.replica] for t in (inputs, targets))
            before = [t.clone() for t in flatten(x)[0]]
            if what.accumulates and step % 2 == 0:
                pipe.module.zero_grad()
            used = None if what.accumulates else optimizer
            result = loss_of_step(pipe, x, y, what.loss, used)
            losses.append(result.loss)
            if what.accumulates and step % 2 == 1 and optimizer is not None:
                optimizer.step()
            assert torch.is_autocast_enabled("cpu") == what.autocast, "the user's region was left"
            assert all(map(torch.equal, before, flatten(x)[0])), "the user's inputs were changed"
            if diverges(losses):
                break
        gradients, state = gradients_of(pipe.module), snapshot(pipe.module)
        evaluation = pipe.evaluate(x, y, what.loss).loss
        pipe.close()
        assert generator_states() == before_all, "the user's generators were moved"
    assert result is not None
    return Trained(losses, evaluation, initial, state, gradients, result.timeline)


def plain(name: str | int, config: PipelineConfig) -> Trained:
    """The unsplit model in plain PyTorch, given the same micro-batches and random numbers."""
    what, step = model(name), 0
    whole = nn.Sequential(*(build(layer, n, SEED, CPU) for n, layer in enumerate(what.layers)))
    initial = snapshot(whole)
    others = rng.other_sources()

    def forward(i: int, value: Any, target: Any) -> Tensor:
        seed = SEED if whole.training else rng.hashed(SEED, step, rng.EVALUATION, 0)
        for n, layer in enumerate(whole):
            rng.reseed(rng.hashed(seed, step, i, n), CPU, others.values())
            value = layer(value)
        rng.reseed(rng.hashed(seed, step, i, len(whole)), CPU, others.values())
        return what.loss(value, target)

    def total_of(inputs: Any, targets: Any) -> float:
        """The loss of all replicas' micro-batches, each with its share, and their gradients."""
        parts = [
            part
            for replica in zip(*(split(t, config.replicas) for t in (inputs, targets)), strict=True)
            for part in zip(*(split(t, config.micro_batches) for t in replica), strict=True)
        ]
        weigh = what.loss.weight if isinstance(what.loss, Weighted) else batch_size
        weights = [float(weigh(y)) for _, y in parts]
        total = 0.0
        # GPipe's backwards add up gradients from the last micro-batch to the first; buffers, which
        # this model has none of, change in the order of the forwards.
        order = reversed(range(len(parts))) if what.autocast else range(len(parts))
        for i in order:
            x, y = parts[i]
            if not weights[i]:
                continue
            with regions(what):
                loss = forward(i, x.clone(), y) * (weights[i] / sum(weights))
            total += loss.item()
            if loss.requires_grad:
                loss.backward()
        return total

    optimizer = optimizer_of(what, whole)
    totals = []
    inputs, targets = what.batches[0]
    with rng.preserved(CPU, others):
        for step, (inputs, targets) in enumerate(what.batches):
            what.prepare(step, whole)
            optimizer = optimizer_of(what, whole, optimizer)
            if not (what.accumulates and step % 2):
                whole.zero_grad()
            with moved_once(whole):
                totals.append(total_of(inputs, targets))
            if optimizer is not None and (step % 2 or not what.accumulates):
                optimizer.step()
            if diverges(totals):
                break
        gradients, state = gradients_of(whole), snapshot(whole)
        step += 1
        whole.eval()
        with torch.no_grad():
            evaluation = total_of(inputs, targets)  # of the last step, which may be an earlier one
    return Trained(totals, evaluation, initial, state, gradients)


@contextmanager
def moved_once(whole: nn.Module) -> Iterator[None]:
    """Let each norm's running statistics move by all that goes into it inside, at once."""
    kinds = nn.modules.batchnorm._NormBase
    norms: list[Any] = [m for m in whole.modules() if isinstance(m, kinds)]
    seen: dict[Any, list[Tensor]] = {norm: [] for norm in norms}
    before = {norm: [getattr(norm, name).clone() for name in _STATISTICS] for norm in norms}
    hooks = [
        norm.register_forward_pre_hook(
            lambda m, args, s=seen[norm]: s.extend([args[0].detach()] * m.track_running_stats)
        )
        for norm in norms
    ]
    yield
    for norm, hook in zip(norms, hooks, strict=True):
        hook.remove()
        if not seen[norm]:
            continue
        if isinstance(norm, nn.modules.instancenorm._InstanceNorm):  # the mean of the examples'
            factor = norm.momentum or 0.0
            inputs = torch.cat([x.flatten(2) for x in seen[norm]])
            mean, variance = inputs.mean(2).mean(0), inputs.var(2).mean(0)
        else:
            count = before[norm][2] + 1
            factor = norm.momentum or 1.0 / count
            inputs = torch.cat([x.transpose(0, 1).flatten(1) for x in seen[norm]], dim=1)
            mean, variance = inputs.mean(1), inputs.var(1)
            norm.num_batches_tracked.copy_(count)
        for old, new, name in zip(before[norm], (mean, variance), _STATISTICS, strict=False):
            getattr(norm, name).copy_(old + factor * (new - old))


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
        checkpoint="never",
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
