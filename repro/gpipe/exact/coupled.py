"""Layers in which the output for one example depends on the other examples of the batch."""

import logging
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from repro.gpipe.comm.message import copied
from repro.gpipe.exact import rng
from repro.gpipe.exact.batchnorm import BATCH_NORMS
from repro.gpipe.exact.guard import Guard, Pass
from repro.gpipe.tree import Tree, flatten, leaves, sizes, unflatten

_log = logging.getLogger(__name__)
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
        is_random: whether the layer drew random numbers; then it has no gradients.
    """

    outputs: _Value
    products: Tensor
    size: float
    is_random: bool


class CoupledExamples(Guard):
    """A layer that combines examples, such as a mean over the batch, gets only a micro-batch.

    It trains as with smaller batches, and a warning names it. Found behind the first step: two
    micro-batches run through each layer joined and apart, and outputs and gradients are compared,
    up to a layer whose outputs do not have the examples in dimension 0. Batch norms, which combine
    examples by design, normalise each of them alone meanwhile. `without=["CoupledExamples"]` leaves
    this guard out.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._seen: set[tuple[int, int]] = set()  # stages, and when their layers were replaced
        self._kept: dict[int, list[_Value]] = {}  # stage -> the inputs of two micro-batches
        self._sizes: list[int] = []  # of the micro-batches of a training step

    def begin_step(self, step: Any) -> None:
        self._kept.clear()
        self._sizes = [] if step.evaluate else sizes(step.examples, step.micro_batches)

    def after_forward(self, p: Pass) -> None:
        if not p.first or p.micro_batch > 1 or len(self._sizes) < 2 or self._layers.has_compiled:
            return
        if (p.stage, self._layers.tree_number) not in self._seen:
            given = [copied(t.detach()) for t in p.inputs.tensors]
            self._kept.setdefault(p.stage, []).append((given, p.inputs.form.skeleton))

    def commit(self) -> None:
        # No other stage waits for this one now, and no graph is left that a layer could spoil.
        for stage, kept in self._kept.items():
            self._seen.add((stage, self._layers.tree_number))
            found = ""
            try:
                found = self._coupled(stage, *kept) if len(kept) == 2 else ""
            except Exception as error:  # a layer fits its micro-batch alone, or memory is short
                _log.debug("stage %d cannot run on two micro-batches joined: %r", stage, error)
            if found:
                _log.warning(
                    "%s are others if two micro-batches are joined, so it trains as on batches of "
                    "%d, not %d; look for a mean over the examples, batch_first=False, or an "
                    "auxiliary loss without 1/M; without=['CoupledExamples'] leaves this out",
                    found,
                    self._sizes[0],
                    sum(self._sizes),
                )
        self._kept.clear()

    def _coupled(self, stage: int, a: _Value, b: _Value) -> str:
        """The first layer of a stage that combines examples, and what shows that; or empty."""
        # A number in the skeleton may be that of the examples, which is another one for both.
        if repr(a[1]) != repr(b[1]) or self._sizes[0] in leaves(a[1]):
            return ""
        whole = [self._join_inputs(stage, *pair) for pair in zip(a[0], b[0], strict=True)]
        values = [(whole, a[1]), a, b]
        for index, layer in self._layers.layers[stage]:
            both, *parts = runs = self._runs(layer, values)
            of_each = zip(*(run.outputs[0] for run in runs), strict=True)
            whole = [_joined(*outputs) for outputs in of_each]
            what = "" if both.is_random else self._difference(both, whole, *parts)
            if what:
                return f"layers[{index}], a {type(layer).__name__}: its {what}"
            # The next layer gets the same bits both ways.
            values = [(whole, both.outputs[1]), *(part.outputs for part in parts)]
        return ""

    def _join_inputs(self, stage: int, a: Tensor, b: Tensor) -> Tensor:
        """Join what enters a stage of two micro-batches; what is the same in both is shared."""
        if a.shape == b.shape and torch.equal(a, b):
            return a
        rows = [t.shape[:1] for t in (a, b)] == [(size,) for size in self._sizes[:2]]
        if not rows or (stage > 0 and self._sizes[0] in a.shape[1:]):
            raise ValueError(f"a tensor of shape {tuple(a.shape)}: which dimension is of examples?")
        return torch.cat([a, b])

    def _runs(self, layer: nn.Module, values: list[_Value]) -> list[_Run]:
        """Run a layer on both micro-batches joined, and on each of them.

        Dropout draws another mask for both together, so it is switched off, and as little else as
        possible: a layer may combine examples in training alone.
        """
        shares = [size / sum(self._sizes[:2]) for size in self._sizes[:2]]
        every = {*layer.modules()}
        of_torch = {part for part in every if type(part).__module__.startswith("torch.")}
        off, both = of_torch, self._run(layer, values[0], 1.0, of_torch)
        if both.is_random:
            off, both = every, self._run(layer, values[0], 1.0, every)
        apart = zip(values[1:], shares, strict=True)
        return [both, *(self._run(layer, *each, off) for each in apart)]

    def _run(self, layer: nn.Module, value: _Value, share: float, off: set[nn.Module]) -> _Run:
        """Run a copy of a layer forward and backward.

        Parts that are `off` are in evaluation mode. The loss is a mean over the examples, of which
        these are a `share`.
        """
        given, skeleton = value
        layer = _copy(layer, off)
        with rng.trial(self._device) as has_drawn, torch.enable_grad():
            inputs = [t.detach().requires_grad_(t.is_floating_point()) for t in given]
            with self._runner.region:
                # Copies, since a layer may write to its inputs.
                made = layer(unflatten([t.clone() for t in inputs], skeleton))
            outputs, structure = flatten(made)
            is_random = has_drawn()
            roots = [t for t in outputs if t.requires_grad]
            upstream = [_upstream(t, share) for t in roots]
            at = [t for t in (*inputs, *layer.parameters()) if t.requires_grad]
            gradients = [torch.zeros_like(t) for t in at]
            if roots and at and not is_random:
                found = torch.autograd.grad(roots, at, upstream, materialize_grads=True)
                gradients = [gradient.to_dense() for gradient in found]
        products = [_product(g, t.detach()) for g, t in zip(gradients, at, strict=True)]
        size = _norm([*upstream, *gradients])
        of_outputs = [t.detach() for t in outputs], structure
        return _Run(of_outputs, torch.tensor(products, dtype=torch.float64), size, is_random)

    def _difference(self, both: _Run, joined: Sequence[Tensor], a: _Run, b: _Run) -> str:
        """What is not the same joined and apart, beyond rounding, which few elements may exceed."""
        pairs = zip(both.outputs[0], joined, strict=True)
        outputs = [(x, y) for x, y in pairs if x.is_floating_point()]
        epsilons = [torch.finfo(x.dtype).eps for x, _ in outputs]
        rounding = max([*epsilons, _EPSILON[self._device.type == "cpu"]]) ** 0.5
        if _norm([x - y for x, y in outputs]) > rounding * _norm([y for _, y in outputs]):
            return "outputs"
        distance = (both.products - a.products - b.products).norm()
        return "gradients" * bool(distance > rounding * both.size)


def _copy(layer: nn.Module, off: set[nn.Module]) -> nn.Module:
    """A copy with the hooks of the parameters; its batch norms combine no examples."""
    every = [each for part in layer.modules() for each in vars(part).values()]
    # Such as the weight that a forward makes of those of `spectral_norm`.
    made = [t for t in every if isinstance(t, Tensor) and not t.is_leaf]
    copy = deepcopy(layer, {id(t): t.detach() for t in made})
    for part, its in zip(layer.modules(), copy.modules(), strict=True):
        its.training = part.training and part not in off
        if isinstance(its, BATCH_NORMS):
            vars(its)["forward"] = _normalised_alone
    for parameter, its in zip(layer.parameters(), copy.parameters(), strict=True):
        its.grad = None
        for hook in (parameter._backward_hooks or {}).values():
            its.register_hook(hook)
    return copy


def _normalised_alone(x: Tensor, *_: object) -> Tensor:
    return nn.functional.layer_norm(x, x.shape[1:])


def _joined(whole: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """The outputs for two micro-batches as one tensor, if `whole` shows how.

    That is `whole` itself if it has no dimension of the examples, as a weight or a sum. Whole
    numbers are to be the same: lengths of packed sequences tell how the others lie.
    """
    has_examples = whole.shape != a.shape
    apart = torch.cat([a, b]) if has_examples else a
    if apart.shape != whole.shape or not (whole.is_floating_point() or torch.equal(whole, apart)):
        raise ValueError(f"outputs of shape {tuple(a.shape)} are not joined in dimension 0")
    return apart if has_examples else whole


def _upstream(outputs: Tensor, share: float) -> Tensor:
    """The gradients of outputs for a loss that is a mean of which these are a share."""
    at = outputs.detach()
    return share / max(at.numel(), 1) * torch.cos(4 * at / (1 + at.abs()))


def _product(gradient: Tensor, of: Tensor) -> float:
    """The product of a gradient with numbers made of what it is the gradient of."""
    numbers = of.cos() + of.sin()  # neither odd nor even, and not all zero where weights are
    return float((gradient * numbers).sum(dtype=torch.float64))


def _norm(tensors: Sequence[Tensor]) -> float:
    """The norm of all their elements."""
    norms = [torch.linalg.vector_norm(t, dtype=torch.float64) for t in tensors]
    return float(torch.stack(norms).norm()) if norms else 0.0
