"""Stages for libraries that send only flat tuples of tensors: nested values are flattened."""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from repro.gpipe.core.layers import Layer, on_meta
from repro.gpipe.partition.layer_costs import stage_layers
from repro.gpipe.tree import Tree, flatten, map_leaves, unflatten


class FlatStage(nn.Module):
    """A stage's layers as a function of flat tensors, or of one tuple of them.

    It returns one tensor or a tuple. With `recompute` layers run again in the backward pass, by the
    re-entrant kind of torch's checkpoint, unless `splits`, since that kind refuses a backward in
    two parts. The other kind calls Python for each tensor that a layer saves, which costs several
    times as much where operators are small (docs/performance.md).
    """

    def __init__(
        self, layers: nn.Sequential, skeleton: Tree, *, recompute: bool, splits: bool = False
    ) -> None:
        super().__init__()
        self.layers = layers
        self.output_skeleton: Tree = None
        self._skeleton = skeleton
        self._recompute, self._splits = recompute, splits

    def forward(self, *tensors: Any) -> Any:
        """Run the layers."""
        if isinstance(tensors[0], tuple):
            (tensors,) = tensors
        if self._recompute and torch.is_grad_enabled():
            # Only an input that requires a gradient gives the parameters theirs, and token ids and
            # images require none.
            some = torch.zeros((), requires_grad=True)
            outputs = checkpoint(self._run, some, *tensors, use_reentrant=not self._splits)
        else:
            outputs = self._run_layers(*tensors)
        return outputs[0] if len(outputs) == 1 else outputs

    def _run(self, _: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        return self._run_layers(*tensors)

    def _run_layers(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        outputs = self.layers(unflatten(list(tensors), self._skeleton))
        flat, self.output_skeleton = flatten(outputs)
        return tuple(flat)

    def unflat(self, outputs: Any) -> Tree:
        """What the last layer returned."""
        outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
        return unflatten(outputs, self.output_skeleton)


def boundaries(
    layers: Sequence[Layer], sample: Tree, counts: Sequence[int]
) -> list[tuple[list[Tensor], Tree]]:
    """The micro-batch before each stage and behind the last: flat, on the meta device."""
    value = map_leaves(Tensor, lambda t: t.to("meta"), sample)
    found = [flatten(value)]
    # Copies, since a layer that is given as a module stays where it is.
    modules = [deepcopy(layer).to("meta") for layer in on_meta(layers)]
    for own in stage_layers(counts):
        value = nn.Sequential(*modules[own.start : own.stop])(value)
        found.append(flatten(value))
    return found
