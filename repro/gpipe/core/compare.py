"""Compare one mini-batch in the pipeline and in the unsplit model.

The unsplit model runs in plain PyTorch on one device, in the process of the last rank. It gets the
same micro-batches and random numbers, and adds up gradients in the same order, so on the CPU both
usually have the same bits.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from itertools import chain, starmap
from typing import Any

import torch
from torch import Tensor, nn

from repro.gpipe.comm.message import copied
from repro.gpipe.core.engine import Engine
from repro.gpipe.core.loss import Loss, MeanLoss, Weighted
from repro.gpipe.core.loss_check import LossCheck
from repro.gpipe.core.verdict import VERDICTS, Verdict, verdict, worst
from repro.gpipe.errors import RefusedError
from repro.gpipe.exact import rng
from repro.gpipe.exact.batchnorm import Statistics
from repro.gpipe.exact.snapshot import state_preserved
from repro.gpipe.schedule.actions import Schedule
from repro.gpipe.tree import Tree, batch_size, map_leaves, split, to_device
from repro.io.untrusted import short

_Tensors = Mapping[str, Tensor | None]  # by name, on the CPU
_State = dict[str, dict[str, Tensor | None]]  # losses, gradients and buffers
# Relative to the largest number of a tensor, or to a thousandth of that of all: gradients before a
# norm, say, are rounding alone.
_ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4}
_ROUNDING_OF_OTHERS = 2e-2
_SMALL = 1e-3


@dataclass(frozen=True)
class Difference:
    """The difference of one tensor between the pipeline and the unsplit model.

    Attributes:
        name: of the parameter or buffer in the unsplit model, or "loss".
        what: "loss", "gradient" or "buffer".
        largest: difference of two of their elements; NaN if only one of them exists.
        size: the largest element in the unsplit model.
        verdict: whether the bits are the same, or the difference is one of rounding.
    """

    name: str
    what: str
    largest: float
    size: float
    verdict: Verdict


@dataclass(frozen=True)
class Comparison:
    """What `Pipeline.compare` returns on every rank; print it for a table of what differs.

    Attributes:
        differences: of the loss, of each gradient and of each buffer after the step.
    """

    differences: tuple[Difference, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of all differences."""
        return worst(each.verdict for each in self.differences)

    def __str__(self) -> str:
        counts = [sum(d.verdict == v for d in self.differences) for v in VERDICTS]
        text = ", ".join(f"{n} {v}" for n, v in zip(counts, VERDICTS, strict=True) if n)
        lines = [f"pipeline and unsplit model: {text}"]
        for d in self.differences:
            if d.verdict != "same bits":
                sizes = f"off by {d.largest:.1e}, of numbers up to {d.size:.1e}"
                lines.append(f"  {d.what:8}  {d.name:32}  {sizes}: {d.verdict}")
        return "\n".join(lines)


def compare(
    engine: Engine,
    schedule: Schedule,
    names: Sequence[str],
    inputs: Tree,
    targets: Tree,
    loss_fn: Loss,
) -> Comparison:
    """A training step of the pipeline, which is undone, and one of the unsplit model.

    `names` are those of all layers.
    """
    all_ranks = engine.all_ranks
    named = engine.layers.module.named_parameters()
    hooked = [name for name, p in named if p._backward_hooks or p._post_accumulate_grad_hooks]
    problem = f"{hooked[0]} has a hook, which no copy of it has" if hooked else ""
    all_ranks.gather_alike("compare", None, {"step": engine.step}, problem)
    inputs = map_leaves(Tensor, Tensor.detach, inputs)
    stateful = loss_fn.loss if isinstance(loss_fn, Weighted) else loss_fn
    with state_preserved(engine.layers.module, stateful):
        found = _trial_step(engine, inputs, targets, loss_fn)
    layers = dict(engine.layers.module.named_children())
    end = all_ranks.ranks - 1  # the last rank of all compares
    outcome: Comparison | str | None = None
    last = schedule.stages - 1
    order = [i for kind, j, i in schedule.orders[-1] if kind in ("B", "W") and j == last]
    own: Any = inputs, targets, layers, found
    try:
        if all_ranks.rank < end:
            all_ranks.send_object(own, end)
        else:
            own = inputs, targets, deepcopy(layers), found
    except Exception as error:  # of any kind, from the user's classes
        own = f"a layer of rank {all_ranks.rank} cannot be copied: {short(error, 200, quote=False)}"
        if all_ranks.rank < end:
            all_ranks.send_object(own, end)
    if all_ranks.rank == end:
        ranks = [*map(all_ranks.recv_object, range(end)), own]
        outcome = next((each for each in ranks if isinstance(each, str)), None)
        try:
            if outcome is None:
                with state_preserved(stateful):
                    outcome = _compare_unsplit(engine, ranks, names, order, loss_fn)
        except (MemoryError, torch.OutOfMemoryError) as error:
            outcome = f"the unsplit model does not fit: {short(error, quote=False)}"
    outcome = all_ranks.all_gather(outcome)[-1]
    if not isinstance(outcome, Comparison):
        raise RefusedError(f"compare: {outcome}")
    return outcome


def _trial_step(engine: Engine, inputs: Tree, targets: Tree, loss_fn: Loss) -> _State:
    """The loss, and gradients and buffers of this rank, after a training step."""
    step, check = engine.step, engine.check
    parameters = [*engine.layers.module.parameters()]
    gradients = [parameter.grad for parameter in parameters]
    if check is not None:  # whenever the loss was checked last
        engine.check = LossCheck(engine.runner)
    try:
        for parameter in parameters:
            parameter.grad = None
        result = engine.train(inputs, targets, loss_fn, None, None, trace=False)
        return _state_of(engine.layers.module, result.loss)
    finally:
        engine.step, engine.check = step, check
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient


def _compare_unsplit(
    engine: Engine,
    ranks: Sequence[tuple[Tree, Tree, dict[str, nn.Module], _State]],
    names: Sequence[str],
    order: Sequence[int],
    loss_fn: Loss,
) -> Comparison:
    """Compare what all ranks sent with the unsplit model, made of the last replica's layers."""
    runner, K = engine.runner, engine.channel.ranks
    layers: dict[str, nn.Module] = {}
    found: _State = {"loss": {}, "gradient": {}, "buffer": {}}
    for _, _, of_rank, state in ranks[-K:]:
        layers |= of_rank
        for what, tensors in state.items():
            found[what] |= tensors
    model = nn.Sequential(OrderedDict((name, layers[name]) for name in names)).to(runner.device)
    given = zip(ranks[::K], ranks[K - 1 :: K], strict=True)
    batches = [to_device((first[0], last[1]), runner.device) for first, last in given]
    loss = step_without_pipeline(
        model,
        batches,
        len(order),
        loss_fn,
        seed=runner.seed,
        step=engine.step,
        order=order,
        region=lambda: runner.region,
    )
    pairs = [(what, found[what], tensors) for what, tensors in _state_of(model, loss).items()]
    return Comparison(tuple(chain.from_iterable(starmap(differences, pairs))))


def step_without_pipeline(
    model: nn.Sequential,
    batches: Sequence[tuple[Tree, Tree]],
    micro_batches: int,
    loss_fn: Loss,
    *,
    seed: int,
    step: int,
    order: Sequence[int],
    region: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> float:
    """One step of a model without a pipeline, but for the update; its gradients are set.

    `batches` has the inputs and targets of each replica, `order` is that of a replica's backwards;
    layers and loss run in `region`. Running statistics of norms move once, by the code that moves
    them in a pipeline. Returned is the loss.
    """
    tensors = chain(model.parameters(), model.buffers())
    device = next((tensor.device for tensor in tensors), torch.device("cpu"))
    others = rng.other_sources()
    weights: list[float] = []
    for inputs, targets in batches:
        counts = batch_size(inputs), micro_batches
        MeanLoss(loss_fn, targets, *counts, lambda weight: weights.append(weight) or weight)
    total = 0.0
    gradients: dict[nn.Parameter, Tensor] = {}
    statistics = Statistics(model.modules())
    statistics.counting = True
    with ExitStack() as stack:
        stack.callback(statistics.restore)
        stack.enter_context(rng.preserved(device, others))
        for replica, (inputs, targets) in enumerate(batches):
            counts = batch_size(inputs), micro_batches
            own = [*model.parameters()]
            mean = MeanLoss(loss_fn, targets, *counts, lambda _: sum(weights), own)
            losses: list[Tensor] = []
            model.zero_grad()  # before the forwards, in which a layer may call backward()
            for i, part in enumerate(split(inputs, micro_batches)):
                value = map_leaves(Tensor, copied, part)
                place = step, replica * micro_batches + i
                with region():
                    for n, layer in enumerate(model):
                        rng.reseed(rng.hashed(seed, *place, n), device, others.values())
                        value = layer(value)
                    rng.reseed(rng.hashed(seed, *place, len(model)), device, others.values())
                    losses.append(mean(i, value))
            total += float(sum(loss.detach() for loss in losses))
            for i in order:
                if losses[i].requires_grad:
                    losses[i].backward()
            for parameter in model.parameters():
                if parameter.grad is not None:
                    former = gradients.get(parameter)
                    both = parameter.grad if former is None else former + parameter.grad
                    gradients[parameter] = both
    statistics.prepare()
    statistics.commit()
    for parameter in model.parameters():
        parameter.grad = gradients.get(parameter)
    return total


def _state_of(module: nn.Module, loss: float) -> _State:
    """The loss, and copies of the gradients and the buffers."""
    state: _State = {
        "loss": {"loss": torch.tensor(loss, dtype=torch.float64)},
        "gradient": {name: p.grad for name, p in module.named_parameters()},
        "buffer": dict(module.named_buffers()),
    }
    return {
        what: {n: None if t is None else t.detach().cpu().clone() for n, t in tensors.items()}
        for what, tensors in state.items()
    }


def differences(what: str, found: _Tensors, expected: _Tensors) -> Iterator[Difference]:
    """Yield the difference of each tensor that is expected."""
    sizes = {name: 0.0 if plain is None else _largest(plain) for name, plain in expected.items()}
    least = _SMALL * max(sizes.values(), default=0.0)
    for name, plain in expected.items():
        ours, size = found.get(name), sizes[name]
        same_bits, distance, limit = ours is plain, 0.0 if ours is plain else math.nan, 0.0
        if ours is not None and plain is not None:
            wide = torch.complex128 if plain.is_complex() else torch.float64
            same_bits, distance = torch.equal(ours, plain), _largest(ours.to(wide) - plain.to(wide))
            limit = _ROUNDING.get(plain.dtype, _ROUNDING_OF_OTHERS) * max(size, least)
        word = verdict(same_bits=same_bits, distance=distance, limit=limit)
        yield Difference(name, what, distance, size, word)


def _largest(tensor: Tensor) -> float:
    return tensor.abs().max().item() if tensor.numel() else 0.0
