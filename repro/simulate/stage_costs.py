"""Costs of the stages of a pipeline: seconds of actions, bytes of messages, and the link."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from numbers import Integral
from typing import Any

from repro.gpipe.errors import within
from repro.gpipe.partition.layer_costs import LEAST, MOST, LinkSpeed, Profile
from repro.gpipe.partition.layer_counts import check_balance
from repro.io.untrusted import short

FREE = LinkSpeed()
TABLES = ("forward", "recompute", "backward")
_TIMES = (*TABLES, "update", "setup", "backward_weight")
_BYTES = ("activations", "gradients")


@dataclass(frozen=True)
class StageCosts:
    """Costs of one micro-batch on each of K stages.

    Attributes:
        forward: seconds of F on each stage.
        recompute: seconds of R on each stage, where a schedule has any.
        backward: seconds of B on each stage.
        activations: bytes that go forward behind each stage but the last: K-1 of them.
        gradients: bytes that come back there.
        link: between two stages; each direction carries one message at a time.
        update: seconds of the optimizer's update on each stage, once per step, after all actions.
        setup: seconds on each stage before its first action, once per step.
        backward_weight: seconds of W on each stage, the part of B that makes the gradients of the
            weights, where a schedule splits B. By default half of B, an assumption: layers are
            timed with whole backwards.

    Raises:
        ValueError: one line: a list has another length, a value is no number of seconds or bytes,
            W takes longer than B, or the link is no `LinkSpeed`.
    """

    forward: tuple[float, ...]
    recompute: tuple[float, ...]
    backward: tuple[float, ...]
    activations: tuple[float, ...] = ()
    gradients: tuple[float, ...] = ()
    link: LinkSpeed = FREE
    update: tuple[float, ...] = ()
    setup: tuple[float, ...] = ()
    backward_weight: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        K = len(_numbers("forward", self.forward))
        if not K:
            raise ValueError(
                "forward=(): needs the seconds of F on at least one stage; try forward=(1.0,)"
            )
        for name in (*_TIMES, *_BYTES):
            length = K if name in _TIMES else K - 1
            values = _numbers(name, getattr(self, name))
            if not values and name == "backward_weight":
                values = tuple(seconds / 2 for seconds in self.backward)
            elif not values and name not in TABLES:
                values = (0.0,) * length
            if len(values) != length:
                place = "stage" if name in _TIMES else "boundary"
                raise ValueError(
                    f"{name}={short(list(values))}: needs {length} numbers, one for each {place} "
                    f"of K={K} stages; give as many"
                )
            object.__setattr__(self, name, values)
        if any(W > B for W, B in zip(self.backward_weight, self.backward, strict=True)):
            raise ValueError(
                f"backward_weight={short(list(self.backward_weight))}: W is a part of B, so it may "
                f"take up to {short(list(self.backward))} seconds; give less"
            )
        if not isinstance(self.link, LinkSpeed):
            raise ValueError(
                f"link={short(self.link)}: must be a LinkSpeed; try LinkSpeed(bytes_per_second=1e9)"
            )

    @classmethod
    def uniform(cls, stages: int, F: float = 1.0, R: float = 1.0, B: float = 2.0) -> "StageCosts":
        """Equal stages and free messages; by default F:R:B = 1:1:2 (NeurIPS section 3.1)."""
        if not (within(stages, 1, 2**20) and isinstance(stages, Integral)):
            raise ValueError(
                f"stages={short(stages)}: must be a whole number, 1 or more; try stages=4"
            )
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
        """Costs of stages that are made of the layers of a model.

        Args:
            layers: costs of each of L layers on one micro-batch.
            counts: layers of each stage, K numbers that sum to L.
            link: between two stages.
            update: seconds of each layer's update; none by default.
            setup: seconds of each stage.

        Raises:
            ValueError: one line: counts do not sum to L, or another argument is wrong.
        """
        if len(update) not in (0, len(layers.forward)):
            raise ValueError(
                f"update={short(list(update))}: needs {len(layers.forward)} numbers, one for each "
                "layer, or none"
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
    def backward_input(self) -> tuple[float, ...]:
        """Seconds of I on each stage: what B takes without W."""
        return tuple(B - W for B, W in zip(self.backward, self.backward_weight, strict=True))

    @property
    def stages(self) -> int:
        return len(self.forward)

    def scaled(self, factor: float) -> "StageCosts":
        """The same costs with all seconds multiplied by a factor, and the link slower by it.

        Raises:
            ValueError: one line: the factor is no number above 0, or it is so large or small that a
                number would leave its range.
        """
        if not within(factor, LEAST, MOST):
            raise ValueError(
                f"factor={short(factor)}: must be a number from {LEAST:g} to {MOST:g}; try "
                "factor=2.0"
            )
        times = {name: tuple(factor * s for s in getattr(self, name)) for name in _TIMES}
        link = LinkSpeed(
            factor * self.link.latency, self.link.bytes_per_second / factor, self.link.overlap
        )
        return StageCosts(
            **times, activations=self.activations, gradients=self.gradients, link=link
        )

    def plain(self) -> dict[str, Any]:
        """The costs as a JSON object, which `from_plain` reads."""
        numbers = {name: list(getattr(self, name)) for name in (*_TIMES, *_BYTES)}
        return {**numbers, "link": plain_link(self.link)}

    @classmethod
    def from_plain(cls, value: Any) -> "StageCosts":
        """The inverse of `plain`."""
        numbers = {name: tuple(value[name]) for name in (*_TIMES, *_BYTES)}
        return cls(**numbers, link=link_of(value["link"]))


def plain_link(link: LinkSpeed) -> dict[str, Any]:
    """A link as a JSON object, where null stands for an infinite speed."""
    speed = link.bytes_per_second
    return asdict(link) | {"bytes_per_second": speed if math.isfinite(speed) else None}


def link_of(value: Mapping[str, Any]) -> LinkSpeed:
    """The inverse of `plain_link`."""
    speed = value["bytes_per_second"]
    return LinkSpeed(value["latency"], math.inf if speed is None else speed, value["overlap"])


def _numbers(name: str, values: object) -> tuple[float, ...]:
    """The seconds or bytes of a field as a tuple of numbers; raises a one-line ValueError."""
    plain = getattr(values, "tolist", lambda: values)()  # NumPy's and torch's own
    if not (isinstance(plain, list | tuple) and all(within(value, 0, MOST) for value in plain)):
        unit = "bytes" if name in _BYTES else "seconds"
        raise ValueError(
            f"{name}={short(values)}: must be a list of {unit}, numbers from 0 to {MOST:g}; try "
            f"{name}=(1.0, 1.0)"
        )
    return tuple(value if isinstance(value, int | float) else float(value) for value in plain)
