"""Measured costs of each layer: seconds of F, R and B, and the bytes that it sends on.

Layers are built, timed and dropped one after the other, so that no process ever holds the whole
model.
"""

import math
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from repro.gpipe.core.layers import Layer, build
from repro.gpipe.exact import rng
from repro.gpipe.partition.layer_costs import Profile
from repro.gpipe.tree import Tree, flatten, map_leaves, unflatten, unwrapped

_REPEATS = 3  # of which the quickest counts, behind one to warm up


def measure(
    layers: Sequence[Layer], sample: Tree, device: torch.device, *, seed: int = 0
) -> Profile:
    """Time every layer, forward and backward, on what the layer before it returned.

    An error inside a layer has a note that names the layer.
    """
    value = map_leaves(Tensor, lambda t: t.detach().to(device), unwrapped(sample))
    seconds: list[tuple[float, float]] = []
    sent: list[tuple[int, int]] = []
    for index, layer in enumerate(layers):
        if isinstance(layer, nn.Module):
            layer = deepcopy(layer)  # it is the user's, with gradients, statistics and a device
        with rng.preserved(device), torch.enable_grad():
            module = build(layer, index, seed, device)
            forward = backward = math.inf
            outputs: Tree = None
            try:
                for attempt in range(_REPEATS + 1):
                    f, b, outputs = _run(module, value, device)
                    if attempt:
                        forward, backward = min(forward, f), min(backward, b)
            except Exception as error:
                error.add_note(f"layers[{index}]: {type(module).__name__} failed on the sample")
                raise
        seconds.append((forward, backward))
        value, tensors = outputs, flatten(outputs)[0]
        back = sum(t.nbytes for t in tensors if t.requires_grad)
        sent.append((sum(t.nbytes for t in tensors), back))
    forwards, backwards = zip(*seconds, strict=True)
    activations, gradients = zip(*sent, strict=True)
    return Profile(forwards, forwards, backwards, activations[:-1], gradients[:-1])


def _run(module: nn.Module, value: Tree, device: torch.device) -> tuple[float, float, Tree]:
    """Run F and B once; seconds of each, and the outputs without their graph."""
    tensors, skeleton = flatten(value)
    received = [t.detach().requires_grad_(t.requires_grad) for t in tensors]
    copies = unflatten([t.clone() for t in received], skeleton)  # layers may work in place
    forward, outputs = timed(device, lambda: module(copies))
    roots = [t for t in flatten(outputs)[0] if t.requires_grad]
    backward, _ = timed(
        device, lambda: torch.autograd.backward(roots, [torch.ones_like(t) for t in roots])
    )
    detached = map_leaves(Tensor, lambda t: t.detach().requires_grad_(t.requires_grad), outputs)
    return forward, backward, detached


def timed(device: torch.device, call: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of a call until the device has done its work, and what it returns."""
    _synchronise(device)
    start = time.perf_counter()
    result = call()
    _synchronise(device)
    return time.perf_counter() - start, result


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
