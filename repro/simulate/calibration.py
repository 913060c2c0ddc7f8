"""Measured times of a model's layers."""

from bisect import bisect_left
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from repro.gpipe.partition.layer_costs import Profile
from repro.simulate.stage_costs import Amounts, Link

Table = tuple[Amounts, ...]  # seconds: a row for each size, a column for each layer


@dataclass(frozen=True)
class Calibration:
    """Times of L layers on a machine, live and as they are recorded.

    They were timed for several micro-batch sizes, while all processes computed at once; other sizes
    are interpolated. Older records also have times of layers while the other processes waited.
    """

    forward: Table  # of F without a graph
    recompute: Table  # of F with a graph, as in R
    backward: Table
    sizes: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)]  # ascending
    update: Amounts  # seconds of each layer's update
    activations: Amounts  # bytes per example that go forward behind each layer but the last
    gradients: Amounts  # bytes per example that come back there
    link: Link  # between two stages

    def __post_init__(self) -> None:
        L = len(self.update)
        for table in (self.forward, self.recompute, self.backward):
            if len(table) != len(self.sizes) or any(len(row) != L for row in table):
                raise ValueError("tables differ in size")
        boundaries = (len(self.activations), len(self.gradients))
        if boundaries != (L - 1, L - 1) or list(self.sizes) != sorted(set(self.sizes)):
            raise ValueError("sizes or boundaries do not fit the layers")

    def profile(self, examples: int, recompute: str = "always") -> Profile:
        """Costs of the layers for a micro-batch of `examples`.

        With recompute "never", F builds the graph and takes the time of R.
        """
        forward = self.recompute if recompute == "never" else self.forward
        return Profile(
            forward=self._interpolate(forward, examples),
            recompute=self._interpolate(self.recompute, examples),
            backward=self._interpolate(self.backward, examples),
            activation_bytes=tuple(round(size * examples) for size in self.activations),
            gradient_bytes=tuple(round(size * examples) for size in self.gradients),
        )

    def covers(self, examples: int) -> bool:
        return self.sizes[0] <= examples <= self.sizes[-1]

    def _interpolate(self, table: Table, examples: int) -> tuple[float, ...]:
        """Seconds of each layer at a micro-batch size; an extrapolation outside of the timed sizes.

        Below the smallest size, seconds are proportional to the size. Beyond the largest, the line
        through the last two sizes is continued, but does not fall.
        """
        sizes = self.sizes
        if examples < sizes[0] or len(sizes) == 1:
            return tuple(seconds * examples / sizes[0] for seconds in table[0])
        high = min(max(1, bisect_left(sizes, examples)), len(sizes) - 1)
        share = (examples - sizes[high - 1]) / (sizes[high] - sizes[high - 1])
        beyond = max(0.0, share - 1)
        pairs = zip(table[high - 1], table[high], strict=True)
        return tuple(a + min(share, 1) * (b - a) + beyond * max(0.0, b - a) for a, b in pairs)
