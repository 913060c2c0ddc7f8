"""Stages for libraries that send only flat tuples of tensors: nested values are flattened.

What a stage gets is learnt from the stage before, on one real micro-batch. Buffers and generators
are left as they were, so that nothing of it can be seen in the training.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from repro.gpipe.comm.control_channel import ControlChannel
from repro.gpipe.tree import Tree, flatten, map_leaves, unflatten
from repro.methods.method import Setup


class FlatStage(nn.Module):
    """A stage's layers as a function of flat tensors, or of one tuple of them.

    It returns one tensor or a tuple. With `recompute` layers run again in the backward pass.
    """

    def __init__(self, layers: nn.Sequential, skeleton: Tree, *, recompute: bool) -> None:
        super().__init__()
        self.layers = layers
        self.output_skeleton: Tree = None
        self._skeleton = skeleton
        self.recompute = recompute

    def forward(self, *tensors: Any) -> Any:
        """Run the layers."""
        if isinstance(tensors[0], tuple):
            (tensors,) = tensors
        if self.recompute and torch.is_grad_enabled():
            outputs = checkpoint(self.run_layers, *tensors, use_reentrant=False)
        else:
            outputs = self.run_layers(*tensors)
        return outputs[0] if len(outputs) == 1 else outputs

    def run_layers(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Run the layers once."""
        outputs = self.layers(unflatten(list(tensors), self._skeleton))
        flat, self.output_skeleton = flatten(outputs)
        return tuple(flat)

    def unflat(self, outputs: Any) -> Tree:
        """What the last layer returned."""
        outputs = [outputs] if isinstance(outputs, Tensor) else list(outputs)
        return unflatten(outputs, self.output_skeleton)


def learn(
    setup: Setup, channel: ControlChannel, number: int, layers: nn.Sequential
) -> tuple[FlatStage, tuple[Tensor, ...], tuple[Tensor, ...]]:
    """A stage, and what one real micro-batch is at its two boundaries.

    The stages before must call this at the same time.
    """
    config, device = setup.config, setup.device
    if number == 0:
        tensors, skeleton = flatten(map_leaves(Tensor, lambda t: t.to(device), setup.sample))
    else:
        received, skeleton = channel.recv_object((number - 1) % config.stages)
        tensors = [t.to(device).requires_grad_(flag) for t, flag in received]
    stage = FlatStage(layers, skeleton, recompute=config.checkpoint == "always")
    saved = [(buffer, buffer.clone()) for buffer in stage.buffers()]
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        outputs = stage.run_layers(*tensors)
    with torch.no_grad():
        for buffer, before in saved:
            buffer.copy_(before)
    if number + 1 < config.total_stages:
        sent = [(t.detach().cpu(), t.requires_grad) for t in outputs]
        channel.send_object((sent, stage.output_skeleton), (number + 1) % config.stages)
    return stage, tuple(tensors), outputs
