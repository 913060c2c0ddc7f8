"""How long each layer takes here: the costs for `balance="time"`.

Layers are built, timed and dropped one after the other, so that no process ever holds the whole model.
"""

import time
from collections.abc import Callable, Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn

from repro.gpipe import rng
from repro.gpipe.layers import Layer, build
from repro.gpipe.microbatch import Tree, flatten, unflatten


def layer_times(
    layers: Sequence[Layer],
    sample: Tree,
    device: torch.device,
    *,
    recompute: bool,
    seed: int = 0,
    repeats: int = 3,
) -> list[float]:
    """Seconds of F, B and, if asked, R of one micro-batch for each layer; the fastest of `repeats`.

    Args:
        layers: the model.
        sample: inputs of one micro-batch.
        device: where to time.
        recompute: count the forward twice.
        seed: for initial weights.
        repeats: timed runs, after one that is not counted.
    """
    value = _to(sample, device)
    times: list[float] = []
    for index, layer in enumerate(layers):
        # A module is the user's own: a copy keeps its gradients, its running statistics and its place.
        module = build(deepcopy(layer) if isinstance(layer, nn.Module) else layer, index, seed, device)
        with rng.preserved(device):
            seconds, outputs = _time_layer(module, value, device, repeats, first=index == 0, recompute=recompute)
        times.append(seconds)
        value = _to(outputs, device)
    return times


def _time_layer(
    module: nn.Module, value: Tree, device: torch.device, repeats: int, *, first: bool, recompute: bool
) -> tuple[float, Tree]:
    """The layer's seconds and its outputs."""
    best = [float("inf")] * 2
    outputs: Tree = None
    for attempt in range(repeats + 1):
        tensors, skeleton = flatten(value)
        leaves = [t.detach().clone().requires_grad_(t.is_floating_point() and not first) for t in tensors]
        copies = unflatten([t.clone() for t in leaves], skeleton)  # layers may work in place
        forward, outputs = _timed(device, lambda c=copies: module(c))
        ready = [t for t in flatten(outputs)[0] if t.requires_grad]
        backward, _ = _timed(device, lambda r=ready: torch.autograd.backward(r, [torch.ones_like(t) for t in r]))
        if attempt:
            best = [min(best[0], forward), min(best[1], backward)]
    return best[0] * (2 if recompute else 1) + best[1], outputs


def _timed(device: torch.device, call: Callable[[], Tree]) -> tuple[float, Tree]:
    _synchronise(device)
    start = time.perf_counter()
    result = call()
    _synchronise(device)
    return time.perf_counter() - start, result


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _to(tree: Tree, device: torch.device) -> Tree:
    tensors, skeleton = flatten(tree)
    return unflatten([Tensor.detach(t).to(device) for t in tensors], skeleton)
