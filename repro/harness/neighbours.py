"""Neighbours of a run: recorded runs that differ from it in one field, with the measured gain.

`repro why` predicts gains from the costs of one step. Where a neighbour disagrees with a
prediction, the neighbour is right, since it was run.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from repro.gpipe.schedule.actions import Schedule
from repro.gpipe.schedule.what_if import EARLY, EXCEPT_LAST, MORE, NEVER, ORDER, Costs, Why
from repro.harness.results import Results, Run
from repro.harness.spec import TIMED, RunSpec
from repro.harness.text import ratio
from repro.harness.vary import varied, varied_arguments

_FIELDS = ("M", "schedule", "checkpoint", "balance")
_SMALLEST_GAIN = 1.02  # without an interval, a smaller gain counts as none


@dataclass(frozen=True)
class Neighbour:
    """A run that differs from the explained run in one field.

    Attributes:
        run: its id.
        fidelity: of both runs.
        field: the field of the spec in which they differ.
        value: of that field in this run.
        own: of that field in the explained run.
        step_s: median step in seconds.
        gain: its throughput over that of the explained run.
        low: lower end of the gain's 95 % interval; NaN below five common rounds.
        high: upper end.
        rounds: in which both were timed; 0 if the gain compares medians of different rounds.
        predicted_s: seconds of its step as predicted; None if there is no prediction.
        predicted: its gain as predicted, or None.
    """

    run: str
    fidelity: str
    field: str
    value: Any
    own: Any
    step_s: float
    gain: float
    low: float
    high: float
    rounds: int
    predicted_s: float | None
    predicted: float | None

    @property
    def name(self) -> str:
        """`M=32`."""
        value = "+".join(map(str, self.value)) if isinstance(self.value, tuple) else self.value
        return f"{self.field}={value}"

    @property
    def gain_text(self) -> str:
        """`0.57x [0.55, 0.60]`, or `0.57x (2 rounds)`; ~ if it may be chance."""
        gain = ratio(self.gain, self.low, self.high)
        if not math.isnan(self.low) or self.fidelity not in TIMED:  # else the same every time
            return gain
        if self.rounds == 0:
            return f"{gain} (other rounds)"
        return f"{gain} ({self.rounds} round{'s' if self.rounds > 1 else ''})"

    @property
    def helps(self) -> bool:
        """True if it was faster, and not by chance."""
        if math.isnan(self.low):
            return self.gain > _SMALLEST_GAIN
        return self.low > 1

    @property
    def change(self) -> str | None:
        """Its name in `repro.gpipe.schedule.what_if.CHANGES`; None if it is none of these."""
        if self.field == "M":
            names = [name for name, factor in MORE.items() if self.value == factor * self.own]
            return names[0] if names else None
        if self.field in ("checkpoint", "schedule"):
            names = {"never": NEVER, "except_last": EXCEPT_LAST, "gpipe": EARLY, "1f1b": ORDER}
            return names.get(self.value)
        return None


def neighbours(results: Results, own: Run, why: Why) -> list[Neighbour]:
    """The neighbours of an explained run in its experiment, the fastest first."""
    compared = []
    for other in results.runs:
        field = _difference(own.spec, other.spec)
        neighbour = _compared(results, own, other, field, why) if field else None
        if neighbour is not None:
            compared.append(neighbour)
    return sorted(compared, key=lambda neighbour: -neighbour.gain)


def disproved(tried: Sequence[Neighbour]) -> list[str]:
    """Changes that `why` should not recommend, because neighbours with them were not faster.

    One larger M that gave nothing disproves the prediction for every larger M: the prediction
    leaves out the fixed cost of a micro-batch. So does a smaller M that was faster.
    """
    failed = [neighbour for neighbour in tried if not neighbour.helps]
    names = [neighbour.change for neighbour in failed if neighbour.change is not None]
    if any(each.field == "M" and (each.value > each.own) != each.helps for each in tried):
        names += list(MORE)
    return names


def _difference(own: RunSpec, other: RunSpec) -> str | None:
    """The one field of `_FIELDS` in which two specs differ; None otherwise."""
    # The time scale of an emulated run depends on K and M, but its seconds are the device's.
    differ = [
        *varied([own, other], [name for name in RunSpec.model_fields if name != "stretch"]),
        *varied_arguments([own, other]),
    ]
    return differ[0] if len(differ) == 1 and differ[0] in _FIELDS else None


def _compared(results: Results, own: Run, other: Run, field: str, why: Why) -> Neighbour | None:
    """The other run as a neighbour of this one; None if one of them was not timed."""
    gain, low, high, rounds = results.ratio(other, own)
    if not rounds:
        gain = other.throughput / own.throughput
    if math.isnan(other.step_s) or math.isnan(gain):
        return None
    predicted_s = _predicted(other.spec, field, why)
    return Neighbour(
        run=other.id,
        fidelity=own.fidelity,
        field=field,
        value=getattr(other.spec, field),
        own=getattr(own.spec, field),
        step_s=other.step_s,
        gain=gain,
        low=low,
        high=high,
        rounds=rounds,
        predicted_s=predicted_s,
        predicted=None if predicted_s is None else why.base_s / predicted_s,
    )


def _predicted(spec: RunSpec, field: str, why: Why) -> float | None:
    """Seconds of a neighbour's step, from the costs of the explained run; None if unknown."""
    if field == "balance":
        return None
    schedule: Schedule = spec.make_schedule()
    return Costs.of(why.timeline, why.schedule).step(schedule, why.schedule.micro_batches / spec.M)
