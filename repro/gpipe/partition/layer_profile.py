"""What each layer costs here, measured: seconds of F, R and B, and the bytes that cross behind it.

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

# of seconds, bytes and bytes per second: what is made of such numbers stays finite
LEAST, MOST = 1e-30, 1e30


@dataclass(frozen=True)
class LinkSpeed:
    """What sending to a neighbour costs the sender; free by default.

    Attributes:
        latency: seconds of each message.
        bytes_per_second: beyond that.
        overlap: whether a stage can compute while it sends.

    Raises:
        ValueError: one line, if the latency is negative, the speed not positive, or one of them no
            number.
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
        """Seconds of a message of `size` bytes; where there is nothing to send, none is sent."""
        return self.latency + size / self.bytes_per_second if size else 0.0


@dataclass(frozen=True)
class Profile:
    """Costs of one micro-batch, layer by layer; the loss belongs to no layer and is left out.

    Attributes:
        forward: seconds of F; L of them.
        recompute: seconds of R, those of F with re-materialization and else 0.
        backward: seconds of B.
        activation_bytes: what goes forward behind each layer but the last: all tensors; L-1 of
            them.
        gradient_bytes: what comes back there: gradients of those tensors that require one.
    """

    forward: tuple[float, ...]
    recompute: tuple[float, ...]
    backward: tuple[float, ...]
    activation_bytes: tuple[int, ...]
    gradient_bytes: tuple[int, ...]

    def cost(self, link: LinkSpeed) -> Callable[[int, int], float]:
        """Seconds of one micro-batch on a stage made of layers a to b-1, as the partitioners take it.

        A stage is charged for F, R and B of its layers and for what it sends: activations forward
        unless it ends the model, gradients back unless it begins it. What it receives is charged to
        the sender. Where it computes while it sends, only a message that takes longer than F, or R
        and B, counts, and in their place: so fast at most does one micro-batch follow the other.
        """
        F = [0.0, *accumulate(self.forward)]
        RB = [0.0, *accumulate(map(sum, zip(self.recompute, self.backward, strict=True)))]
        onward = [link.seconds(size) for size in self.activation_bytes] + [0.0]
        back = [0.0] + [link.seconds(size) for size in self.gradient_bytes]
        both: Callable[[float, float], float] = max if link.overlap else operator.add
        return lambda a, b: both(F[b] - F[a], onward[b - 1]) + both(RB[b] - RB[a], back[a])


def measure(
    layers: Sequence[Layer],
    sample: Tree,
    device: torch.device,
    *,
    recompute: bool,
    seed: int = 0,
    repeats: int = 3,
) -> Profile:
    """Run every layer forward and backward on what the layer before it returned.

    Args:
        layers: the model.
        sample: inputs of one micro-batch.
        device: where to time.
        recompute: whether layers will be run again before their backward.
        seed: for initial weights.
        repeats: timed runs, after one that is not counted; the fastest counts.

    An error inside a layer carries a note that says which one.
    """
    assert repeats >= 1
    value = map_leaves(Tensor, lambda t: t.detach().to(device), unwrapped(sample))
    forward: list[float] = []
    backward: list[float] = []
    sizes: list[tuple[int, int]] = []
    for index, layer in enumerate(layers):
        with rng.preserved(device), torch.enable_grad():
            f, b, value = _measure_layer(layer, index, value, device, seed, repeats)
        forward.append(f)
        backward.append(b)
        sizes.append(_sizes(value))
    again = forward if recompute else [0.0] * len(forward)
    onward, back = zip(*sizes, strict=True)
    return Profile(tuple(forward), tuple(again), tuple(backward), onward[:-1], back[:-1])


def _measure_layer(
    layer: Layer, index: int, value: Tree, device: torch.device, seed: int, repeats: int
) -> tuple[float, float, Tree]:
    """Seconds of F and of B, and the outputs without their graph."""
    # A module is the user's own: a copy keeps its gradients, its running statistics and its place.
    module = build(deepcopy(layer) if isinstance(layer, nn.Module) else layer, index, seed, device)
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
    return (
        forward,
        backward,
        map_leaves(Tensor, lambda t: t.detach().requires_grad_(t.requires_grad), outputs),
    )


def _run(module: nn.Module, value: Tree, device: torch.device) -> tuple[float, float, Tree]:
    """F and B once: seconds of each, and the outputs."""
    tensors, skeleton = flatten(value)
    received = [t.detach().requires_grad_(t.requires_grad) for t in tensors]
    copies = unflatten([t.clone() for t in received], skeleton)  # layers may work in place
    forward, outputs = _timed(device, lambda: module(copies))
    ready = [t for t in flatten(outputs)[0] if t.requires_grad]
    backward, _ = _timed(
        device, lambda: torch.autograd.backward(ready, [torch.ones_like(t) for t in ready])
    )
    return forward, backward, outputs


def _sizes(value: Tree) -> tuple[int, int]:
    """Bytes of all tensors, and of those that require a gradient."""
    tensors, _ = flatten(value)
    return sum(t.nbytes for t in tensors), sum(t.nbytes for t in tensors if t.requires_grad)


def _timed(device: torch.device, call: Callable[[], Tree]) -> tuple[float, Tree]:
    _synchronise(device)
    start = time.perf_counter()
    result = call()
    _synchronise(device)
    return time.perf_counter() - start, result


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
