"""Measured times of a model's layers, and the costs of stages made of them."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from repro.gpipe.partition.layer_costs import LinkSpeed, Profile
from repro.simulate.stage_costs import Amounts, Link, StageCosts

Table = tuple[Amounts, ...]  # seconds: a row for each size, a column for each layer
# F, R or B -> for each stage, the fraction of the other stages that compute at the same time.
Overlap = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class LayerTables:
    """Seconds of each layer, for several micro-batch sizes."""

    forward: Table  # of F without a graph
    recompute: Table  # of F with a graph, as in R
    backward: Table


@dataclass(frozen=True)
class Calibration(LayerTables):
    """Times of L layers on a machine, live and as they are recorded.

    They were timed for several micro-batch sizes, while all processes computed at once; other sizes
    are interpolated.
    """

    sizes: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)]  # ascending
    update: Amounts  # seconds of each layer's update
    activations: Amounts  # bytes per example that go forward behind each layer but the last
    gradients: Amounts  # bytes per example that come back there
    link: Link  # between two stages
    alone: LayerTables | None = None  # timed while the other processes waited

    def __post_init__(self) -> None:
        L = len(self.update)
        for tables in [self, self.alone] if self.alone else [self]:
            for table in (tables.forward, tables.recompute, tables.backward):
                if len(table) != len(self.sizes) or any(len(row) != L for row in table):
                    raise ValueError("tables differ in size")
        boundaries = (len(self.activations), len(self.gradients))
        if boundaries != (L - 1, L - 1) or list(self.sizes) != sorted(set(self.sizes)):
            raise ValueError("sizes or boundaries do not fit the layers")

    def beside_replicas(self, replicas: int) -> "Calibration":
        """The same for one of D replicas: its layers never compute alone."""
        return self if replicas == 1 else replace(self, alone=None)

    def profile(
        self, examples: int, checkpoint: str = "always", busy: Overlap | None = None
    ) -> Profile:
        """Costs of the layers for a micro-batch of `examples`.

        With checkpoint "never", F builds the graph and takes the time of R. `busy` has the fraction
        of the other stages that compute meanwhile: 0 takes the tables `alone`, 1 the others.
        """

        def seconds(kind: str, table: str) -> tuple[float, ...]:
            all_busy = self._interpolate(getattr(self, table), examples)
            if self.alone is None or busy is None:
                return all_busy
            alone = self._interpolate(getattr(self.alone, table), examples)
            each = zip(alone, all_busy, busy[kind], strict=True)
            return tuple(a + p * (b - a) for a, b, p in each)

        return Profile(
            forward=seconds("F", "recompute" if checkpoint == "never" else "forward"),
            recompute=seconds("R", "recompute"),
            backward=seconds("B", "backward"),
            activation_bytes=tuple(round(size * examples) for size in self.activations),
            gradient_bytes=tuple(round(size * examples) for size in self.gradients),
        )

    def stages(
        self,
        counts: Sequence[int],
        examples: int,
        checkpoint: str = "always",
        overlap: Overlap | None = None,
        link: LinkSpeed | None = None,
    ) -> StageCosts:
        """Costs of stages with `counts` layers each; `overlap` is of stages, see `profile`."""
        busy = overlap and {
            kind: [part for part, count in zip(parts, counts, strict=True) for _ in range(count)]
            for kind, parts in overlap.items()
        }
        layers = self.profile(examples, checkpoint, busy)
        return StageCosts.of(layers, counts, link or self.link, self.update)

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
