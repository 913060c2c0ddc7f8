"""A training step on devices that are not here: a schedule and what its stages cost, laid on a virtual clock.

Nothing is run. The walker is `repro.gpipe.replay`, the durations come from a cost model: a device's profile
(`repro.costs.roofline`), layers timed here, or numbers of one's own. A run made so has the fidelity "simulated".
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from numbers import Integral
from typing import Any

from repro.gpipe.balance import check_balance
from repro.gpipe.errors import shown, within
from repro.gpipe.profile import LEAST, MOST, LinkSpeed, Profile
from repro.gpipe.replay import Crossing, replay
from repro.gpipe.schedule import Action, Schedule
from repro.gpipe.timeline import Span, Timeline

FREE = LinkSpeed()
Table = tuple[tuple[float, ...], ...]  # seconds: a row for each size, a column for each layer
Together = Mapping[str, Sequence[float]]  # F, R, B -> for each stage the part of the others that is busy meanwhile


@dataclass(frozen=True)
class StageCosts:
    """What one micro-batch costs on each of K stages.

    Attributes:
        forward: seconds of F on each stage.
        recompute: seconds of R, where a schedule has any.
        backward: seconds of B.
        activations: bytes that go forward behind each stage but the last: K-1 of them.
        gradients: bytes that come back there.
        link: between two stages; each direction carries one message at a time.
        update: seconds of the optimizer's update on each stage, once a step, when all stages have ended.
        setup: seconds on each stage before its first action, once a step.

    Raises:
        ValueError: one line, where a list has another length, something is no number of seconds or bytes, or the link
            no `LinkSpeed`.
    """

    forward: tuple[float, ...]
    recompute: tuple[float, ...]
    backward: tuple[float, ...]
    activations: tuple[float, ...] = ()
    gradients: tuple[float, ...] = ()
    link: LinkSpeed = FREE
    update: tuple[float, ...] = ()
    setup: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        K = len(_numbers("forward", self.forward))
        if not K:
            raise ValueError("forward=(): needs the seconds of F on at least one stage; try forward=(1.0,)")
        for name in (*_TIMES, *_BYTES):
            length = K if name in _TIMES else K - 1
            values = _numbers(name, getattr(self, name))
            if not values and name not in _TABLES:
                values = (0.0,) * length
            if len(values) != length:
                raise ValueError(
                    f"{name}={shown(list(values))}: needs {length} numbers, one for each "
                    f"{'stage' if name in _TIMES else 'boundary'} of K={K} stages; give as many"
                )
            object.__setattr__(self, name, values)
        if not isinstance(self.link, LinkSpeed):
            raise ValueError(f"link={shown(self.link)}: must be a LinkSpeed; try LinkSpeed(bytes_per_second=1e9)")

    @classmethod
    def uniform(cls, stages: int, F: float = 1.0, R: float = 1.0, B: float = 2.0) -> "StageCosts":
        """Equal stages and free messages; by default F:R:B = 1:1:2 (section 3.1, NeurIPS version)."""
        if not (within(stages, 1, 2**20) and isinstance(stages, Integral)):
            raise ValueError(f"stages={shown(stages)}: must be a whole number, 1 or more; try stages=4")
        K = int(stages)
        return cls((F,) * K, (R,) * K, (B,) * K)

    @classmethod
    def of(
        cls,
        layers: Profile,
        counts: Sequence[int],
        link: LinkSpeed = FREE,
        update: Sequence[float] = (),
        setup: float = 0.0,
    ) -> "StageCosts":
        """A model's layers, cut into stages.

        Args:
            layers: what each of L layers costs on one micro-batch.
            counts: layers of each stage, K numbers that sum to L.
            link: between two stages.
            update: seconds of each layer's update; none by default.
            setup: seconds of each stage.

        Raises:
            ValueError: one line, where counts do not sum to L or another argument is wrong.
        """
        if len(update) not in (0, len(layers.forward)):
            raise ValueError(
                f"update={shown(list(update))}: needs {len(layers.forward)} numbers, one for each layer, or none"
            )
        ends = [*accumulate(check_balance(counts, len(layers.forward), len(counts)))]

        def summed(values: Sequence[float]) -> tuple[float, ...]:
            return tuple(sum(values[a:b]) for a, b in pairwise([0, *ends])) if values else ()

        crossing = [end - 1 for end in ends[:-1]]
        return cls(
            summed(layers.forward),
            summed(layers.recompute),
            summed(layers.backward),
            tuple(layers.activation_bytes[i] for i in crossing),
            tuple(layers.gradient_bytes[i] for i in crossing),
            link,
            summed(update),
            (setup,) * len(counts),
        )

    @property
    def stages(self) -> int:
        """K."""
        return len(self.forward)

    def scaled(self, factor: float) -> "StageCosts":
        """On a clock that runs so many times slower: all seconds longer, the link slower, bytes as they are.

        Raises:
            ValueError: one line, where the factor is no number above 0, or so large or small that a number would leave
                its range.
        """
        if not within(factor, LEAST, MOST):
            raise ValueError(f"factor={shown(factor)}: must be a number from {LEAST:g} to {MOST:g}; try factor=2.0")
        times = {name: tuple(factor * s for s in getattr(self, name)) for name in _TIMES}
        link = LinkSpeed(factor * self.link.latency, self.link.bytes_per_second / factor, self.link.overlap)
        return StageCosts(**times, activations=self.activations, gradients=self.gradients, link=link)

    def plain(self) -> dict[str, Any]:
        """As recorded; `from_plain` reads it."""
        return {name: list(getattr(self, name)) for name in (*_TIMES, *_BYTES)} | {"link": plain_link(self.link)}

    @classmethod
    def from_plain(cls, value: Any) -> "StageCosts":
        """The inverse of `plain`."""
        return cls(**{name: tuple(value[name]) for name in (*_TIMES, *_BYTES)}, link=link_of(value["link"]))


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
        alone: forward, recompute and backward once more, while the other processes waited; else all computed.
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
        self, counts: Sequence[int], examples: int, checkpoint: str = "always", together: Together | None = None
    ) -> StageCosts:
        """Costs of a cut, for micro-batches of so many examples.

        Micro-batches that are not recomputed, of "except_last" all but the last of each stage are, build their graph
        in F; where none is, F takes what R would.

        Args:
            counts: layers of each of K stages.
            examples: of a micro-batch.
            checkpoint: which micro-batches are recomputed.
            together: what part of the other stages computes while a stage does, in [0, 1], of each kind K; between
                alone and together the seconds are interpolated. By default all do.
        """
        owner = [j for j, count in enumerate(counts) for _ in range(count)]

        def seconds(kind: str, table: str) -> tuple[float, ...]:
            others = self._at(getattr(self, table), examples)
            if self.alone is None or together is None:
                return others
            lone = self._at(self.alone[_TABLES.index(table)], examples)
            part = [together[kind][j] for j in owner]
            return tuple(a + p * (b - a) for a, b, p in zip(lone, others, part, strict=True))

        again, back = seconds("R", "recompute"), seconds("B", "backward")
        forward = seconds("F", "recompute" if checkpoint == "never" else "forward")
        onward = tuple(round(size * examples) for size in self.activations)
        layers = Profile(forward, again, back, onward, tuple(round(size * examples) for size in self.gradients))
        return StageCosts.of(layers, counts, self.link, self.update)

    def _at(self, table: Sequence[Sequence[float]], examples: int) -> tuple[float, ...]:
        """Seconds of each layer; beyond the largest size as between the last two, below the smallest in proportion."""
        sizes = self.sizes
        if examples < sizes[0]:
            return tuple(seconds * examples / sizes[0] for seconds in table[0])
        if len(sizes) == 1:
            return tuple(seconds * examples / sizes[0] for seconds in table[0])
        high = min(max(1, bisect_left(sizes, examples)), len(sizes) - 1)
        share = (examples - sizes[high - 1]) / (sizes[high] - sizes[high - 1])
        return tuple(max(0.0, a + share * (b - a)) for a, b in zip(table[high - 1], table[high], strict=True))

    @classmethod
    def from_plain(cls, value: Mapping[str, Any]) -> "Calibration":
        """As `repro.harness.calibration` records it."""
        tables = {name: tuple(map(tuple, value[name])) for name in _TABLES}
        rest = {name: tuple(value[name]) for name in ("sizes", "update", "activations", "gradients")}
        lone = value.get("alone")
        forward, recompute, backward = (tuple(map(tuple, lone[name])) if lone else () for name in _TABLES)
        alone = (forward, recompute, backward) if lone else None
        return cls(**tables, **rest, link=link_of(value["link"]), alone=alone)


def plain_link(link: LinkSpeed) -> dict[str, Any]:
    """As recorded; JSON has no infinity, so a speed without bounds is null."""
    speed = link.bytes_per_second
    return asdict(link) | {"bytes_per_second": speed if math.isfinite(speed) else None}


def link_of(value: Mapping[str, Any]) -> LinkSpeed:
    """The inverse of `plain_link`."""
    speed = value["bytes_per_second"]
    return LinkSpeed(value["latency"], math.inf if speed is None else speed, value["overlap"])


def _numbers(name: str, values: object) -> tuple[float, ...]:
    """The seconds or bytes of a field, as a tuple of Python's numbers; a ValueError of one line where they are none."""
    plain = getattr(values, "tolist", lambda: values)()  # NumPy's and torch's own
    if not (isinstance(plain, list | tuple) and all(within(value, 0, MOST) for value in plain)):
        what = "bytes" if name in _BYTES else "seconds"
        raise ValueError(
            f"{name}={shown(values)}: must be a list of {what}, numbers from 0 to {MOST:g}; try {name}=(1.0, 1.0)"
        )
    return tuple(value if isinstance(value, int | float) else float(value) for value in plain)


_TABLES = ("forward", "recompute", "backward")
_TIMES = ("forward", "recompute", "backward", "update", "setup")
_BYTES = ("activations", "gradients")


def simulate(schedule: Schedule, costs: StageCosts) -> Timeline:
    """One step: set-up, the schedule's actions as early as order and messages allow, and the update.

    Where costs are uniform, and messages, set-up and update free, its step is that of `repro.paper.theory` to rounding.

    Raises:
        ValueError: if the schedule has another number of stages than the costs.
    """
    if schedule.stages != costs.stages:
        raise ValueError(
            f"schedule: has K={schedule.stages} stages, costs those of {costs.stages}; give both the same K"
        )
    seconds = {"F": costs.forward, "R": costs.recompute, "B": costs.backward}
    timeline = replay(schedule, lambda action: seconds[action.kind][action.stage], _transfer(costs), costs.setup)
    end = max((span.end for span in timeline.spans), default=0.0)
    before = [Span("setup", j, -1, 0.0, s) for j, s in enumerate(costs.setup) if s]
    after = [Span("U", j, -1, end, end + s) for j, s in enumerate(costs.update) if s]
    return Timeline((*before, *timeline.spans, *after), schedule.stages)


def settle(schedule: Schedule, costs: Callable[[Together], StageCosts], rounds: int = 3) -> StageCosts:
    """Costs that depend on how much the stages compute at once, which depends on the costs.

    Args:
        schedule: whose stages.
        costs: what they are, given the part of the other stages that is busy meanwhile (`together`).
        rounds: begun with all stages always busy, the step is simulated and looked at so many times.
    """
    found = costs(dict.fromkeys("FRB", (1.0,) * schedule.stages))
    for _ in range(rounds):
        found = costs(together(simulate(schedule, found)))
    return found


def together(timeline: Timeline) -> dict[str, tuple[float, ...]]:
    """While each stage is in F, in R, in B: the part of the other stages that is in one of these as well, in [0, 1].

    It is a mean over the time; 0 where there is no other stage, or none of that time.
    """
    work = [span for span in timeline.spans if span.kind in "FRB"]
    edges = sorted((moment, change) for span in work for moment, change in ((span.start, 1), (span.end, -1)))
    computed: dict[float, float] = {}  # moment -> seconds of all stages together until then
    before = total = 0.0
    busy = 0
    for moment, change in edges:
        total += busy * (moment - before)
        computed[moment] = total
        before, busy = moment, busy + change
    K = timeline.stages
    own = {kind: [0.0] * K for kind in "FRB"}
    others = {kind: [0.0] * K for kind in "FRB"}
    for span in work:
        own[span.kind][span.stage] += span.seconds
        others[span.kind][span.stage] += computed[span.end] - computed[span.start] - span.seconds
    return {
        kind: tuple(
            min(1.0, max(0.0, part / (K - 1) / mine)) if mine and K > 1 else 0.0
            for part, mine in zip(others[kind], own[kind], strict=True)
        )
        for kind in "FRB"
    }


def _transfer(costs: StageCosts) -> "float | Any":
    """What the messages take; without bounds on the link nothing has to be looked up."""
    link = costs.link
    if link == FREE:
        return 0.0
    sizes = {("F", j): size for j, size in enumerate(costs.activations)}
    sizes |= {("B", j + 1): size for j, size in enumerate(costs.gradients)}
    found = {
        key: Crossing(size / link.bytes_per_second, link.latency, not link.overlap) if size else Crossing()
        for key, size in sizes.items()
    }

    def crossing(action: Action, _target: int) -> Crossing:
        return found[action.kind, action.stage]

    return crossing
