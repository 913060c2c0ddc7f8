"""Measured times of a model's layers, and the costs of stages made of them."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from repro.gpipe.partition.layer_costs import LinkSpeed, Profile
from repro.simulate.stage_costs import TABLES, StageCosts, link_of

Table = tuple[tuple[float, ...], ...]  # seconds: a row for each size, a column for each layer
# F, R or B -> for each stage, the fraction of the other stages that compute at the same time.
Overlap = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Calibration:
    """Times of L layers on a machine, for several micro-batch sizes; other sizes are interpolated.

    Attributes:
        sizes: micro-batch sizes in examples, ascending.
        forward: seconds of F without a graph: a row for each size, with L numbers.
        recompute: seconds of F with a graph, as in R.
        backward: seconds of B.
        update: seconds of each layer's update.
        activations: bytes per example that go forward behind each layer but the last.
        gradients: bytes per example that come back there.
        link: between two stages.
        alone: the tables forward, recompute and backward, measured while the other processes
            waited. For the other tables all processes computed at once.
        parameters: bytes of each layer's parameters; empty in older records.
    """

    sizes: tuple[int, ...]
    forward: Table
    recompute: Table
    backward: Table
    update: tuple[float, ...]
    activations: tuple[float, ...]
    gradients: tuple[float, ...]
    link: LinkSpeed
    alone: tuple[Table, Table, Table] | None = None
    parameters: tuple[float, ...] = ()

    def beside_replicas(self, replicas: int) -> "Calibration":
        """The same for one of D replicas: beside others, layers never compute alone."""
        return self if replicas == 1 else replace(self, alone=None)

    def stages(
        self,
        counts: Sequence[int],
        examples: int,
        checkpoint: str = "always",
        overlap: Overlap | None = None,
    ) -> StageCosts:
        """Costs of the stages of a cut.

        With checkpoint "never", F builds the graph and takes the time of R.

        Args:
            counts: layers of each of K stages.
            examples: micro-batch size.
            checkpoint: which micro-batches are recomputed.
            overlap: for each kind of action, K fractions in [0, 1] of the other stages that compute
                at the same time. Seconds are interpolated between the tables `alone` (0) and the
                others (1). By default 1.
        """
        owner = [j for j, count in enumerate(counts) for _ in range(count)]

        def seconds(kind: str, table: str) -> tuple[float, ...]:
            all_busy = self._interpolate(getattr(self, table), examples)
            if self.alone is None or overlap is None:
                return all_busy
            alone = self._interpolate(self.alone[TABLES.index(table)], examples)
            busy = [overlap[kind][j] for j in owner]
            return tuple(a + p * (b - a) for a, b, p in zip(alone, all_busy, busy, strict=True))

        layers = Profile(
            forward=seconds("F", "recompute" if checkpoint == "never" else "forward"),
            recompute=seconds("R", "recompute"),
            backward=seconds("B", "backward"),
            activation_bytes=tuple(round(size * examples) for size in self.activations),
            gradient_bytes=tuple(round(size * examples) for size in self.gradients),
        )
        return StageCosts.of(layers, counts, self.link, self.update)

    def covers(self, examples: int) -> bool:
        """Whether a micro-batch size lies between sizes that were timed."""
        return self.sizes[0] <= examples <= self.sizes[-1]

    def _interpolate(self, table: Sequence[Sequence[float]], examples: int) -> tuple[float, ...]:
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

    @classmethod
    def from_plain(cls, value: Mapping[str, Any]) -> "Calibration":
        """The calibration that `repro.harness.tasks.calibrate` has recorded."""
        tables = {name: tuple(map(tuple, value[name])) for name in TABLES}
        rest = {
            name: tuple(value[name]) for name in ("sizes", "update", "activations", "gradients")
        }
        alone = None
        if value.get("alone"):
            forward, recompute, backward = (
                tuple(map(tuple, value["alone"][name])) for name in TABLES
            )
            alone = forward, recompute, backward
        parameters = tuple(value.get("parameters") or ())
        link = link_of(value["link"])
        return cls(**tables, **rest, link=link, alone=alone, parameters=parameters)
