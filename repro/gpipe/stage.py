"""F, R and B of one micro-batch on one stage: the layers of a stage and what it keeps between these.

With re-materialization F keeps only the boundary inputs; R runs the layers again with a graph; B differentiates
(section 2.3 of arXiv:1811.06965v5).
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from repro.gpipe import rng
from repro.gpipe.batchnorm import Statistics
from repro.gpipe.buffers import Changing, Snapshot, as_before
from repro.gpipe.message import copied
from repro.gpipe.microbatch import Tree, flatten, unflatten

Head = Callable[[int, Tree], Tensor]  # (micro-batch, outputs) -> its share of the mini-batch loss
# Layer index, layer, and the generators besides torch's that it draws from; see `rng`.
_Call = tuple[int, Callable[[Tree], Tree], set[str]]
Watch = Callable[[int, int, Tree], Tree]  # (micro-batch, layer index, what it returned) -> the same values


@dataclass
class _Kept:
    """What a micro-batch leaves on a stage between F and B."""

    inputs: list[Tensor]
    skeleton: Tree
    outputs: list[Tensor] | None = None  # with their graph: after F, or after R
    buffers: Snapshot = field(default_factory=list)


class Stage:
    """Consecutive layers on one device.

    Args:
        layers: layer index in the whole model -> module, in order.
        names: their keys in the unsplit model's state dict.
        device: where they run.
        seed: of the random state, see `rng`.

    While `probing`, F builds a graph even if none is kept, to learn which outputs require a gradient, whether the
    first layer overwrites its input, which buffers change and which generators the layers draw from.
    """

    def __init__(self, layers: Mapping[int, nn.Module], names: Sequence[str], device: torch.device, seed: int) -> None:
        self.names = names
        self.module = nn.Sequential(OrderedDict(zip(names, layers.values(), strict=True)))
        self.device = device
        self.seed = seed
        self.step = 0
        self.first = 0  # the number of this replica's first micro-batch among those of all replicas
        self.probing = False
        self.head: Head | None = None
        self.statistics: Statistics | None = None  # while a training step runs
        self.watch: Watch | None = None  # while a refused step runs once more; see `culprit`
        self.kept: dict[int, _Kept] = {}
        self._overwrites_inputs = False
        self.changing = Changing(self.module)
        self._layers: list[_Call] = [(index, layer, rng.declared(layer)) for index, layer in layers.items()]
        self.head_index, self._head_draws = max(layers, default=-1) + 1, set[str]()
        self._others: dict[str, rng.Source] = {}
        self._drawn: set[str] = set()

    def forward(self, i: int, inputs: Tree, *, keep: bool) -> Tree:
        """F of micro-batch i.

        Args:
            i: micro-batch.
            inputs: on this device; floating-point tensors that arrived from a neighbour require a gradient.
            keep: keep the graph, so that B can follow without R.

        Returns:
            The outputs, or on the last stage, with a head, the micro-batch's share of the loss; without a graph,
            but `requires_grad` tells what had one when `keep` or `probing`.
        """
        tensors, skeleton = flatten(inputs)
        kept = self.kept[i] = _Kept(tensors, skeleton)
        if not keep and not self.probing:
            kept.buffers = self.changing.snapshot()
        with torch.set_grad_enabled(keep or self.probing):
            self._count(True)
            outputs, structure = flatten(self._probe(i, kept) if self.probing else self._run(i, kept))
            self._count(False)
        if keep:
            kept.outputs = outputs
        detached = [t.detach().requires_grad_(t.requires_grad) for t in outputs]
        return unflatten(detached, structure)

    def recompute(self, i: int) -> None:
        """R of micro-batch i: the same values as its F, now with a graph; needs no gradient yet."""
        kept = self.kept[i]
        with torch.enable_grad(), as_before(kept.buffers) if kept.buffers else nullcontext():
            kept.outputs, _ = flatten(self._run(i, kept))

    def backward(self, i: int, gradients: list[Tensor | None] | None) -> list[Tensor | None]:
        """B of micro-batch i: adds to the parameters' gradients and frees what the micro-batch had kept.

        Args:
            i: micro-batch.
            gradients: one for each output tensor, None where it has none; None as a whole on the last stage, whose
                output is the loss.

        Returns:
            One gradient for each input tensor that requires one, None where the loss does not depend on it.
        """
        kept = self.kept.pop(i)
        assert kept.outputs is not None, f"B{i} before F{i} or R{i}"
        given = gradients if gradients is not None else [torch.ones_like(t) for t in kept.outputs]
        pairs = [(t, g) for t, g in zip(kept.outputs, given, strict=True) if t.requires_grad and g is not None]
        if pairs:
            torch.autograd.backward([t for t, _ in pairs], [g for _, g in pairs])
        return [t.grad for t in kept.inputs if t.requires_grad and t.is_leaf]

    def evaluate(self, i: int, inputs: Tree) -> Tree:
        """Outputs of micro-batch i without gradients; keeps nothing and applies no head."""
        tensors, skeleton = flatten(inputs)
        with torch.no_grad():
            return self._through(i, unflatten([copied(t) for t in tensors], skeleton), self._layers)

    def score(self, i: int, outputs: Tree) -> Tensor:
        """The share of the loss of an evaluation's outputs."""
        with torch.no_grad():
            return self._through(i, outputs, self._last(i))

    def _count(self, on: bool) -> None:
        if self.statistics is not None:
            self.statistics.counting = on

    def _run(self, i: int, kept: _Kept) -> Tree:
        """Layers and head on the kept inputs, which stay as they are.

        Copies go in if the first layer works in place (timm's ResNet does), which would spoil what R needs; F and R
        treat them alike, since a matrix product's last bits may depend on how its operands are aligned.
        """
        copy = self.probing or self._overwrites_inputs
        tensors = [copied(t) for t in kept.inputs] if copy else kept.inputs
        versions = [t._version for t in tensors]
        value = unflatten(tensors, kept.skeleton)
        if self.watch is not None:
            value = self.watch(i, self.head_index - len(self._layers) - 1, value)
        outputs = self._through(i, value, [*self._layers, *self._last(i)])
        if self.probing and any(t._version != v for t, v in zip(tensors, versions, strict=True)):
            self._overwrites_inputs = True
        return outputs

    def _probe(self, i: int, kept: _Kept) -> Tree:
        """`_run`, to learn which buffers it changes."""
        with self.changing.learning() as kept.buffers:
            return self._run(i, kept)

    def _last(self, i: int) -> list[_Call]:
        """The head, which counts as one more layer to random state."""
        return [] if self.head is None else [(self.head_index, partial(self.head, i), self._head_draws)]

    def generators_preserved(self) -> AbstractContextManager[None]:
        """Around a step: the user's generators of random numbers are as they were afterwards."""
        if self.probing:
            self._others = rng.other_sources()
        names = self._others if self.probing else self._drawn
        return rng.preserved(self.device, [self._others[name] for name in names])

    def _through(self, i: int, value: Tree, calls: Sequence[_Call]) -> Tree:
        for index, call, draws in calls:
            seed = rng.hashed(self.seed, self.step, self.first + i, index)
            names = self._others if self.probing else draws & self._drawn
            rng.reseed(seed, self.device, [self._others[name] for name in names])
            value = call(value)
            if self.watch is not None:
                value = self.watch(i, index, value)
            if self.probing:
                draws |= {name for name, source in self._others.items() if source.has_moved(seed)}
                self._drawn |= draws & self._others.keys()
        return value
