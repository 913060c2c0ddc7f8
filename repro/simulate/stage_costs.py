"""Costs of the stages of a pipeline: seconds of actions, bytes of messages, and the link."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer
from pydantic.dataclasses import dataclass

from repro.gpipe.partition.layer_costs import MOST, LinkSpeed, Profile, check_balance, stage_layers

FREE = LinkSpeed()


def _with_inf(link: Any) -> Any:
    """The fields of a link as pydantic reads them; in JSON null is an infinite speed."""
    fields = asdict(link) if isinstance(link, LinkSpeed) else link
    if isinstance(fields, dict) and fields.get("bytes_per_second", 0) is None:
        fields = fields | {"bytes_per_second": math.inf}
    return fields


def _with_null(link: LinkSpeed) -> dict[str, Any]:
    speed = link.bytes_per_second
    return asdict(link) | {"bytes_per_second": speed if math.isfinite(speed) else None}


# A link in a record or a spec.
Link = Annotated[LinkSpeed, BeforeValidator(_with_inf), PlainSerializer(_with_null)]
Amount = Annotated[float, Field(ge=0, le=MOST)]  # of seconds or bytes
Amounts = tuple[Amount, ...]


@dataclass(frozen=True)
class StageCosts:
    """Costs of one micro-batch on each of K stages, live and as they are recorded."""

    forward: Annotated[Amounts, Field(min_length=1)]  # seconds of F on each stage
    recompute: Amounts  # of R, where a schedule has any
    backward: Amounts  # of B
    activations: Amounts = ()  # bytes that go forward behind each stage but the last: K-1
    gradients: Amounts = ()  # bytes that come back there
    link: Link = FREE  # between two stages; each direction carries one message at a time
    update: Amounts = ()  # seconds of the optimizer's update, once per step, after all actions
    setup: Amounts = ()  # seconds before the first action, once per step
    # Seconds of W, the part of B that makes the gradients of the weights, where a schedule splits
    # B. By default half of B, an assumption: layers are timed with whole backwards.
    backward_weight: Amounts = ()

    def __post_init__(self) -> None:
        K = len(self.forward)
        defaults = {
            "recompute": (),
            "backward": (),
            "activations": (0.0,) * (K - 1),
            "gradients": (0.0,) * (K - 1),
            "update": (0.0,) * K,
            "setup": (0.0,) * K,
            "backward_weight": tuple(seconds / 2 for seconds in self.backward),
        }
        for name, default in defaults.items():
            values = getattr(self, name) or default
            length = K - 1 if name in ("activations", "gradients") else K
            if len(values) != length:
                raise ValueError(f"{name} has {len(values)} numbers, {K} stages need {length}")
            object.__setattr__(self, name, values)
        if any(W > B for W, B in zip(self.backward_weight, self.backward, strict=True)):
            raise ValueError("backward_weight is a part of backward, and longer than it")

    @classmethod
    def of(
        cls,
        layers: Profile,
        counts: Sequence[int],
        link: LinkSpeed = FREE,
        update: Sequence[float] = (),
        setup: float = 0.0,
    ) -> "StageCosts":
        """Costs of stages with `counts` of these layers; `update` has seconds of each layer."""
        stages = stage_layers(check_balance(counts, len(layers.forward), len(counts)))

        def summed(values: Sequence[float]) -> tuple[float, ...]:
            return tuple(sum(values[n] for n in own) for own in stages) if values else ()

        crossing = [own.stop - 1 for own in stages[:-1]]
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
