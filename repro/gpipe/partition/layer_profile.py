"""Measured costs of each layer: seconds of F, R and B, and the bytes that it sends on.

Layers are built, timed and dropped one after the other, so that no process ever holds the whole
model.
"""

import math
import operator
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn

from repro.gpipe.core.layers import Layer, build
from repro.gpipe.core.microbatch import Tree, flatten, map_leaves, unflatten, unwrapped
from repro.gpipe.errors import shown, within
from repro.gpipe.exact import rng

# Limits of seconds, bytes and bytes per second; products and quotients of these stay finite.
LEAST, MOST = 1e-30, 1e30


@dataclass(frozen=True)
class LinkSpeed:
    """The speed of a link to a neighbour; by default sending takes no time.

    Attributes:
        latency: seconds of each message.
        bytes_per_second: the bandwidth; inf for none.
        overlap: whether a stage can compute while it sends.

    Raises:
        ValueError: if the latency is negative, the speed not positive, or one of them no number.
    """

    latency: float = 0.0
    bytes_per_second: float = math.inf
    overlap: bool = True

    def __post_init__(self) -> None:
        if not within(self.latency, 0, MOST):
            raise ValueError(
                f"latency={shown(self.latency)}: must be a finite number of seconds, 0 to "
                f"{MOST:g}; try latency=1e-5"
            )
        speed = self.bytes_per_second
        if not (within(speed, LEAST, MOST) or within(speed, math.inf, math.inf)):
            raise ValueError(
                f"bytes_per_second={shown(speed)}: must be a number from {LEAST:g} to {MOST:g}, or "
                "inf for a free link; try bytes_per_second=1e9"
            )
        if type(self.overlap).__name__ not in ("bool", "bool_"):  # the latter is NumPy's
            raise ValueError(
                f"overlap={shown(self.overlap)}: must be True or False; try overlap=True"
            )

    def seconds(self, size: int) -> float:
        """Seconds of a message of `size` bytes; 0 for 0 bytes, since no message is sent then."""
        if size == 0:
            return 0.0
        return self.latency + size / self.bytes_per_second


@dataclass(frozen=True)
class Profile:
    """Costs of one micro-batch, layer by layer, without the loss.

    Attributes:
        forward: seconds of F of each of L layers.
        recompute: seconds of R: those of F with re-materialization, otherwise 0.
        backward: seconds of B.
        activation_bytes: size of the outputs of each layer but the last, L-1 numbers.
        gradient_bytes: size of the gradients of those outputs that require one, L-1 numbers.
    """

    forward: tuple[float, ...]
    recompute: tuple[float, ...]
    backward: tuple[float, ...]
    activation_bytes: tuple[int, ...]
    gradient_bytes: tuple[int, ...]

    def cost(self, link: LinkSpeed) -> Callable[[int, int], float]:
        """(a, b) -> seconds of one micro-batch on a stage made of layers a to b-1.

        The costs of a stage are F, R and B of its layers and the messages that it sends:
        activations forward unless it is the last stage, gradients back unless it is the first. With
        `overlap` the longer of computing and sending counts, since micro-batches follow each other
        at that pace. Otherwise both add up.
        """
        F = [0.0, *accumulate(self.forward)]
        recompute_and_backward = zip(self.recompute, self.backward, strict=True)
        RB = [0.0, *accumulate(r + b for r, b in recompute_and_backward)]
        send_activations = [link.seconds(size) for size in self.activation_bytes] + [0.0]
        send_gradients = [0.0] + [link.seconds(size) for size in self.gradient_bytes]
        together: Callable[[float, float], float] = max if link.overlap else operator.add

        def seconds(a: int, b: int) -> float:
            forward = together(F[b] - F[a], send_activations[b - 1])
            backward = together(RB[b] - RB[a], send_gradients[a])
            return forward + backward

        return seconds


def measure(
    layers: Sequence[Layer],
    sample: Tree,
    device: torch.device,
    *,
    recompute: bool,
    seed: int = 0,
    repeats: int = 3,
) -> Profile:
    """Time every layer, forward and backward, on what the layer before it returned.

    Args:
        layers: the model.
        sample: inputs of one micro-batch.
        device: where to time.
        recompute: whether layers will be run again before their backward.
        seed: of initial weights.
        repeats: timed runs, after one run to warm up; the fastest counts.

    An error inside a layer has a note that names the layer.
    """
    assert repeats >= 1
    value = map_leaves(Tensor, lambda t: t.detach().to(device), unwrapped(sample))
    forward: list[float] = []
    backward: list[float] = []
    activation_bytes: list[int] = []
    gradient_bytes: list[int] = []
    for index, layer in enumerate(layers):
        with rng.preserved(device), torch.enable_grad():
            f, b, value = _measure_layer(layer, index, value, device, seed, repeats)
        forward.append(f)
        backward.append(b)
        outputs, _ = flatten(value)
        activation_bytes.append(sum(t.nbytes for t in outputs))
        gradient_bytes.append(sum(t.nbytes for t in outputs if t.requires_grad))
    return Profile(
        tuple(forward),
        tuple(forward) if recompute else (0.0,) * len(forward),
        tuple(backward),
        tuple(activation_bytes[:-1]),
        tuple(gradient_bytes[:-1]),
    )


def _measure_layer(
    layer: Layer, index: int, value: Tree, device: torch.device, seed: int, repeats: int
) -> tuple[float, float, Tree]:
    """Seconds of F and of B, and the outputs without their graph."""
    if isinstance(layer, nn.Module):
        layer = deepcopy(layer)  # it is the user's, with gradients, running statistics and a device
    module = build(layer, index, seed, device)
    forward = backward = math.inf
    outputs: Tree = None
    try:
        for attempt in range(repeats + 1):
            f, b, outputs = _run(module, value, device)
            if attempt:
                forward, backward = min(forward, f), min(backward, b)
    except Exception as error:
        error.add_note(
            f"layers[{index}]: {type(module).__name__} failed on the sample while it was timed"
        )
        raise
    detached = map_leaves(Tensor, lambda t: t.detach().requires_grad_(t.requires_grad), outputs)
    return forward, backward, detached


def _run(module: nn.Module, value: Tree, device: torch.device) -> tuple[float, float, Tree]:
    """Run F and B once; seconds of each, and the outputs."""
    tensors, skeleton = flatten(value)
    received = [t.detach().requires_grad_(t.requires_grad) for t in tensors]
    copies = unflatten([t.clone() for t in received], skeleton)  # layers may work in place
    forward, outputs = _timed(device, lambda: module(copies))
    roots = [t for t in flatten(outputs)[0] if t.requires_grad]
    backward, _ = _timed(
        device, lambda: torch.autograd.backward(roots, [torch.ones_like(t) for t in roots])
    )
    return forward, backward, outputs


def _timed(device: torch.device, call: Callable[[], Tree]) -> tuple[float, Tree]:
    _synchronise(device)
    start = time.perf_counter()
    result = call()
    _synchronise(device)
    return time.perf_counter() - start, result


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
