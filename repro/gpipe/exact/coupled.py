"""Layers in which the output for one example depends on the other examples of the batch."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain, islice, product
from typing import Any

import torch
from torch import Tensor, nn

from repro.gpipe.comm.message import copied
from repro.gpipe.core.loss_check import state_preserved
from repro.gpipe.exact import rng
from repro.gpipe.exact.batchnorm import BATCH_NORMS
from repro.gpipe.exact.guard import Guard, Pass
from repro.gpipe.exact.nonfinite import real_values
from repro.gpipe.tree import Tree, flatten, leaves, sizes, unflatten

_log = logging.getLogger(__name__)
_MOST_WAYS = 8  # to join two micro-batches that are tried
# Of the coarsest numbers that products may be rounded to: TF32 on a GPU.
_EPSILON = {True: torch.finfo(torch.float64).eps, False: 2.0**-10}  # on the CPU, or not
_Value = tuple[Sequence[Tensor], Tree]  # a flattened tree


@dataclass
class _Run:
    """What a layer made of one batch.

    Attributes:
        outputs: its tensors, without a graph, and their structure.
        products: for each input and parameter that of its gradient with numbers made of it. Those
            of two batches add up to that of both, however their examples lie in memory.
        size: the norm of all these gradients, and of those of the outputs.
        is_random: whether the layer drew random numbers.
    """

    outputs: _Value
    products: Tensor
    size: float
    is_random: bool


class CoupledExamples(Guard):
    """A layer that combines examples, such as a mean over the batch, gets only a micro-batch.

    It trains as with smaller batches, and a warning names it. Found behind the first step with
    inputs of a kind: two micro-batches run through each layer joined and apart, and outputs and
    gradients are compared. Batch norms, which combine examples by design, normalise each of them
    alone meanwhile. `check_layers=False` leaves this guard out.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._seen: set[object] = set()
        self._kept: dict[int, list[_Value]] = {}  # stage -> the inputs of two micro-batches
        self._sizes: list[int] = []  # of the micro-batches of a training step

    def begin_step(self, step: Any) -> None:
        self._kept.clear()
        self._sizes = [] if step.evaluate else sizes(step.examples, step.micro_batches)

    def after_forward(self, p: Pass) -> None:
        if not p.first or p.micro_batch > 1 or len(self._sizes) < 2 or self._layers.has_compiled:
            return
        if self._kind(p.stage, p.inputs.tensors) not in self._seen:
            given = [copied(t.detach()) for t in p.inputs.tensors]
            self._kept.setdefault(p.stage, []).append((given, p.inputs.form.skeleton))

    def commit(self) -> None:
        # No other stage waits for this one now, and no graph is left that a layer could spoil.
        for stage, kept in self._kept.items():
            self._seen |= {self._kind(stage, tensors) for tensors, _ in kept}
            found = self._coupled(stage, *kept) if len(kept) == 2 else ""
            if found:
                _log.warning(
                    "%s are others if two micro-batches are joined, so it trains as on batches of "
                    "%d, not %d; look for a mean over the examples, batch_first=False, or an "
                    "auxiliary loss without 1/M; check_layers=False switches this check off",
                    found,
                    self._sizes[0],
                    sum(self._sizes),
                )
        self._kept.clear()

    def _kind(self, stage: int, inputs: Sequence[Tensor]) -> object:
        """Without sizes: that of a sequence may differ in every step."""
        return stage, self._layers.tree_number, *((t.dtype, t.ndim) for t in inputs)

    def _coupled(self, stage: int, a: _Value, b: _Value) -> str:
        """The first layer of a stage that combines examples, and what shows that; or empty."""
        skeleton = a[1]
        if repr(skeleton) != repr(b[1]) or self._sizes[0] in leaves(skeleton):
            return ""  # a number of examples, perhaps, which is another one for both
        ways = (_ways(*pair, self._sizes) for pair in zip(a[0], b[0], strict=True))
        found = ""
        for joined in islice(product(*ways), _MOST_WAYS):
            try:
                in_this_way = self._compare_layers(stage, [(joined, skeleton), a, b])
            except Exception as error:  # a layer fits its micro-batch alone, or memory is short
                _log.debug("stage %d does not run on two micro-batches joined: %r", stage, error)
                continue
            if not in_this_way:
                return ""
            found = found or in_this_way
        return found

    def _compare_layers(self, stage: int, values: list[_Value]) -> str:
        """Run two micro-batches through each layer, joined and apart, until that differs."""
        for index, layer in self._layers.layers[stage]:
            both, *parts = self._runs(layer, values)
            joined = _joined_outputs(*(run.outputs[0] for run in (both, *parts)))
            what = "" if both.is_random else self._difference(both, joined, *parts)
            if what:
                return f"layers[{index}], a {type(layer).__name__}: its {what}"
            # The next layer gets the same bits both ways.
            tensors = [own if each is None else each for own, each in joined]
            values = [(tensors, both.outputs[1]), *(part.outputs for part in parts)]
        return ""

    def _runs(self, layer: nn.Module, values: list[_Value]) -> list[_Run]:
        """Run a layer on both micro-batches joined, and on each of them."""
        every = [*layer.modules()]
        of_torch = [part for part in every if type(part).__module__.startswith("torch.")]
        off: list[nn.Module] = []
        both = self._run(layer, values[0], off)
        # Dropout draws another mask for both together, so it is switched off, and as little else as
        # possible: a layer may combine examples in training alone.
        for parts in (of_torch, every):
            if both.is_random:
                off, both = parts, self._run(layer, values[0], parts)
        shares = [size / sum(self._sizes[:2]) for size in self._sizes[:2]]
        apart = zip(values[1:], shares, strict=True)
        return [both, *(self._run(layer, part, off, share, both) for part, share in apart)]

    def _run(
        self,
        layer: nn.Module,
        value: _Value,
        off: Sequence[nn.Module],
        share: float = 1.0,
        both: _Run | None = None,
    ) -> _Run:
        """Run a layer forward and backward, and leave no trace of it.

        Parts that are `off` are in evaluation mode. The loss is a mean over the examples, of which
        these are a `share`.
        """
        given, skeleton = value
        others = rng.other_sources()
        with rng.preserved(self._device, others), torch.enable_grad(), _unchanged(layer):
            for part in off:
                part.training = False
            rng.reseed(0, self._device, others.values())
            inputs = [t.detach().requires_grad_(_is_float(t)) for t in given]
            with self._runner.region:
                # Copies, since a layer may write to its inputs.
                made = layer(unflatten([t.clone() for t in inputs], skeleton))
            outputs, structure = flatten(made)
            sources = [*rng.torch_sources(self._device), *others.values()]
            is_random = any(source.has_moved(0) for source in sources)
            of_both = outputs if both is None else both.outputs[0]
            pairs = [(t, w) for t, w in zip(outputs, of_both, strict=True) if t.requires_grad]
            pairs = [] if is_random else pairs
            roots, weights = [t for t, _ in pairs], [_weights(*pair, share) for pair in pairs]
            parameters = [p for p in layer.parameters() if p.requires_grad]
            at = [*(t for t in inputs if t.requires_grad), *parameters]
            gradients: list[Tensor | None] = [None] * len(at)
            if roots and at:
                gradients = [*torch.autograd.grad(roots, at, weights, allow_unused=True)]
            # And what a backward() inside the layer has added.
            gradients += [p.grad for p in parameters]
        products = [_product(g, t) for g, t in zip(gradients, [*at, *parameters], strict=True)]
        size = _norm([*weights, *(g for g in gradients if g is not None)])
        plain = [t.detach() for t in outputs]
        return _Run(
            (plain, structure), torch.tensor(products, dtype=torch.float64), size, is_random
        )

    def _difference(
        self, both: _Run, joined: Sequence[tuple[Tensor, Tensor | None]], a: _Run, b: _Run
    ) -> str:
        """What is not the same joined and apart, beyond rounding, which few elements may exceed."""
        floats = [(x, y) for x, y in joined if _is_float(x)]
        epsilons = [torch.finfo(x.dtype).eps for x, _ in floats]
        rounding = max([*epsilons, _EPSILON[self._device.type == "cpu"]]) ** 0.5
        outputs = [(x, y) for x, y in floats if y is not None]
        if _norm([x - y for x, y in outputs]) > rounding * _norm([y for _, y in outputs]):
            return "outputs"
        distance = (both.products - a.products - b.products).norm()
        return "gradients" * bool(distance > rounding * both.size)


@contextmanager
def _unchanged(layer: nn.Module) -> Iterator[None]:
    """Wrap a run of a layer: put back all that it changes, and let batch norms combine nothing."""
    parts, parameters = [*layer.modules()], [*layer.parameters()]
    modes = [part.training for part in parts]
    before = [(p, p.grad, p._version, p.detach().clone()) for p in parameters]
    hooks = chain.from_iterable((p._backward_hooks or {}).values() for p in parameters)
    with ExitStack() as stack:
        for each in (layer, *hooks):
            stack.enter_context(state_preserved(each))
        for part in parts:
            if isinstance(part, BATCH_NORMS):
                vars(part)["forward"] = _normalised_alone
        for parameter in parameters:
            parameter.grad = None
        try:
            yield
        finally:
            for part, mode in zip(parts, modes, strict=True):
                part.training = mode
            for parameter, gradient, version, values in before:
                parameter.grad = gradient
                if parameter._version != version or not torch.equal(parameter, values):
                    with torch.no_grad():
                        parameter.copy_(values)


def _normalised_alone(x: Tensor, *_: object) -> Tensor:
    return nn.functional.layer_norm(x, x.shape[1:])


def _ways(a: Tensor, b: Tensor, counts: Sequence[int]) -> list[Tensor]:
    """Tensors that may be those of two micro-batches joined, the likeliest first.

    Dimensions that are as long as a micro-batch may be that of the examples. What is the same in
    both may be shared, such as a mask.
    """
    ways = []
    for n in range(a.ndim if a.ndim == b.ndim else 0):
        lengths, rest = (
            [a.shape[n], b.shape[n]],
            {(*t.shape[:n], *t.shape[n + 1 :]) for t in (a, b)},
        )
        if len(rest) == 1 and lengths == [*counts[:2]]:
            ways.append(torch.cat([a, b], n))
    return [*ways, a] if a.shape == b.shape and torch.equal(a, b) else ways


def _joined(whole: Tensor, a: Tensor, b: Tensor) -> Tensor | None:
    """Join the tensors of two micro-batches as `whole` is; None if it is not made of them."""
    for n in range(whole.ndim if whole.ndim == a.ndim == b.ndim else 0):
        rest = {(*t.shape[:n], *t.shape[n + 1 :]) for t in (whole, a, b)}
        if len(rest) == 1 and whole.shape[n] == a.shape[n] + b.shape[n]:
            return torch.cat([a, b], n)
    return None


def _joined_outputs(
    whole: Sequence[Tensor], a: Sequence[Tensor], b: Sequence[Tensor]
) -> list[tuple[Tensor, Tensor | None]]:
    """Each output for both together, and those for each of them joined, if it is made of them.

    Whole numbers, such as indices or the lengths of packed sequences, may tell how others lie.
    """
    pairs = [(x, _joined(x, y, z)) for x, y, z in zip(whole, a, b, strict=True)]
    for (x, joined), y in zip(pairs, a, strict=True):
        apart = y if joined is None else joined
        same = _is_float(x) or x.ndim == 0 or (x.shape == apart.shape and torch.equal(x, apart))
        if not same:
            return [(own, None) for own, _ in pairs]
    return pairs


def _weights(outputs: Tensor, of_both: Tensor, share: float) -> Tensor:
    """The gradients of outputs. What all micro-batches share, such as a weight, has a share."""
    share = share if outputs.shape == of_both.shape else 1.0
    least = 2.0**10 * torch.finfo(outputs.dtype).tiny  # in float16 one of many would vanish
    values = torch.cos(4 * outputs.detach() / (1 + outputs.detach().abs()))
    return values * (share * max(1 / max(of_both.numel(), 1), least))


def _product(gradient: Tensor | None, of: Tensor) -> float:
    """The product of a gradient with numbers made of what it is the gradient of."""
    if gradient is None:
        return 0.0
    at = real_values(of.detach())
    numbers = at.cos() + at.sin()  # neither odd nor even, and not all zero where weights are
    return float((real_values(gradient.to_dense()) * numbers).sum(dtype=torch.float64))


def _norm(tensors: Sequence[Tensor]) -> float:
    """The norm of all their elements."""
    norms = [torch.linalg.vector_norm(real_values(t), dtype=torch.float64) for t in tensors]
    return float(torch.stack(norms).norm()) if norms else 0.0


def _is_float(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
