"""What the layers of a model took where they were timed, and what stages made of them cost."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from repro.gpipe.partition.layer_profile import LinkSpeed, Profile
from repro.simulate.stage_costs import TABLES, StageCosts, link_of

Table = tuple[tuple[float, ...], ...]  # seconds: a row for each size, a column for each layer
# F, R, B -> for each stage the part of the others that is busy meanwhile
Together = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Calibration:
    """What L layers took on a machine, for micro-batches of several sizes; between these it is interpolated.

    Attributes:
        sizes: examples of the micro-batches, ascending.
        forward: seconds of F without a graph: one row a size, L in each.
        recompute: seconds of F with one, which R is.
        backward: seconds of B.
        update: seconds of each layer's update.
        activations: bytes for each example that go forward behind each layer but the last.
        gradients: bytes for each example that come back there.
        link: between two stages.
        alone: forward, recompute and backward once more, while the other processes waited; else all
            computed.
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

    def stages(
        self,
        counts: Sequence[int],
        examples: int,
        checkpoint: str = "always",
        together: Together | None = None,
    ) -> StageCosts:
        """Costs of a cut, for micro-batches of so many examples.

        Micro-batches that are not recomputed, of "except_last" all but the last of each stage are,
        build their graph in F; where none is, F takes what R would.

        Args:
            counts: layers of each of K stages.
            examples: of a micro-batch.
            checkpoint: which micro-batches are recomputed.
            together: what part of the other stages computes while a stage does, in [0, 1], of each
                kind K; between alone and together the seconds are interpolated. By default all do.
        """
        owner = [j for j, count in enumerate(counts) for _ in range(count)]

        def seconds(kind: str, table: str) -> tuple[float, ...]:
            others = self._at(getattr(self, table), examples)
            if self.alone is None or together is None:
                return others
            lone = self._at(self.alone[TABLES.index(table)], examples)
            part = [together[kind][j] for j in owner]
            return tuple(a + p * (b - a) for a, b, p in zip(lone, others, part, strict=True))

        again, back = seconds("R", "recompute"), seconds("B", "backward")
        forward = seconds("F", "recompute" if checkpoint == "never" else "forward")
        onward = tuple(round(size * examples) for size in self.activations)
        layers = Profile(
            forward, again, back, onward, tuple(round(size * examples) for size in self.gradients)
        )
        return StageCosts.of(layers, counts, self.link, self.update)

    def covers(self, examples: int) -> bool:
        """Whether micro-batches of so many examples lie between those that were timed."""
        return self.sizes[0] <= examples <= self.sizes[-1]

    def _at(self, table: Sequence[Sequence[float]], examples: int) -> tuple[float, ...]:
        """Seconds of each layer; beyond the sizes that were timed a guess.

        Beyond the largest as between the last two, and not less than there; below the smallest in
        proportion.
        """
        sizes = self.sizes
        if examples < sizes[0]:
            return tuple(seconds * examples / sizes[0] for seconds in table[0])
        if len(sizes) == 1:
            return tuple(seconds * examples / sizes[0] for seconds in table[0])
        high = min(max(1, bisect_left(sizes, examples)), len(sizes) - 1)
        share = (examples - sizes[high - 1]) / (sizes[high] - sizes[high - 1])
        beyond = max(0.0, share - 1)
        pairs = zip(table[high - 1], table[high], strict=True)
        return tuple(a + min(share, 1) * (b - a) + beyond * max(0.0, b - a) for a, b in pairs)

    @classmethod
    def from_plain(cls, value: Mapping[str, Any]) -> "Calibration":
        """As `repro.harness.tasks.calibrate` records it."""
        tables = {name: tuple(map(tuple, value[name])) for name in TABLES}
        rest = {
            name: tuple(value[name]) for name in ("sizes", "update", "activations", "gradients")
        }
        lone = value.get("alone")
        forward, recompute, backward = (
            tuple(map(tuple, lone[name])) if lone else () for name in TABLES
        )
        alone = (forward, recompute, backward) if lone else None
        return cls(**tables, **rest, link=link_of(value["link"]), alone=alone)
