"""Costs of layers as numbers: seconds of F, R and B, bytes that are sent, and a link's speed."""

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from repro.gpipe.errors import within
from repro.io.untrusted import short

# Limits of seconds, bytes and bytes per second; products and quotients of these stay finite.
LEAST, MOST = 1e-30, 1e30
BALANCES = ("parameters", "time", "uniform")  # what a cut may make even


def check_balance(balance: Sequence[int], layers: int, stages: int) -> list[int]:
    """The given number of layers of each stage, checked."""
    counts: list[int] = [*balance] if isinstance(balance, Sequence) else [balance]
    are_integers = all(isinstance(n, int) and not isinstance(n, bool) for n in counts)
    if not are_integers or len(counts) != stages or sum(counts) != layers or min(counts) < 1:
        raise ValueError(
            f"balance={short(counts)}: needs {stages} positive numbers that sum to "
            f"the model's {layers} layers, or a cost(a, b), or a name: {', '.join(BALANCES)}"
        )
    return counts


def stage_layers(counts: Sequence[int]) -> list[range]:
    """The layers of each stage, by how many it has."""
    return [range(end - count, end) for end, count in zip(accumulate(counts), counts, strict=True)]


@dataclass(frozen=True, kw_only=True)
class LinkSpeed:
    """The speed of a link to a neighbour; by default sending takes no time.

    Attributes:
        latency: seconds of each message.
        bytes_per_second: the bandwidth; inf for none.
        overlap: whether a stage can compute while it sends.
    """

    latency: float = 0.0
    bytes_per_second: float = math.inf
    overlap: bool = True

    def __post_init__(self) -> None:
        for name, least, most in (("latency", 0, MOST), ("bytes_per_second", LEAST, math.inf)):
            value = getattr(self, name)
            if not within(value, least, most):
                raise ValueError(
                    f"{name}={short(value)}: must be a number from {least:g} to {most:g}"
                )
        if not isinstance(self.overlap, bool):
            raise ValueError(f"overlap={short(self.overlap)}: must be True or False")

    def __str__(self) -> str:
        speed, late = self.bytes_per_second, f" after {self.latency:g} s" if self.latency else ""
        return f"{speed / 1e9:g} GB/s{late}" if speed >= 1e9 else f"{speed / 1e6:g} MB/s{late}"

    def seconds(self, size: int) -> float:
        """Seconds of a message of `size` bytes; 0 for 0 bytes, since no message is sent then."""
        return self.latency + size / self.bytes_per_second if size else 0.0


@dataclass(frozen=True)
class Profile:
    """Costs of one micro-batch, layer by layer, without the loss.

    Attributes:
        forward: seconds of F of each of L layers.
        recompute: seconds of R, where it recomputes.
        backward: seconds of B.
        activation_bytes: size of the outputs of each layer but the last, L-1 numbers.
        gradient_bytes: size of the gradients of those outputs that require one, L-1 numbers.
    """

    forward: tuple[float, ...]
    recompute: tuple[float, ...]
    backward: tuple[float, ...]
    activation_bytes: tuple[int, ...]
    gradient_bytes: tuple[int, ...]

    def cost(self, link: LinkSpeed, *, recompute: bool) -> Callable[[int, int], float]:
        """(a, b) -> seconds of one micro-batch on a stage made of layers a to b-1.

        The costs of a stage are F, B and perhaps R of its layers and the messages that it sends:
        activations forward unless it is the last stage, gradients back unless it is the first. With
        `overlap` the longer of computing and sending counts, since micro-batches follow each other
        at that pace. Otherwise both add up.
        """
        F = [0.0, *accumulate(self.forward)]
        both = map(operator.add, self.recompute, self.backward)
        RB = [0.0, *accumulate(both if recompute else self.backward)]
        send_activations = [*map(link.seconds, self.activation_bytes), 0.0]
        send_gradients = [0.0, *map(link.seconds, self.gradient_bytes)]
        together: Callable[[float, float], float] = max if link.overlap else operator.add

        def seconds(a: int, b: int) -> float:
            forward = together(F[b] - F[a], send_activations[b - 1])
            return forward + together(RB[b] - RB[a], send_gradients[a])

        return seconds
