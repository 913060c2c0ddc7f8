"""Variants of a run: recorded runs that differ from it in one field, with the measured gain."""

import math
from dataclasses import dataclass
from typing import Any

from repro.gpipe.schedule.what_if import DOUBLED, NEVER, Explanation
from repro.harness.results import Results, Run
from repro.harness.spec import TIMED
from repro.harness.text import ratio
from repro.harness.vary import all_varied

_FIELDS = ("M", "schedule", "checkpoint", "balance")


@dataclass(frozen=True)
class Variant:
    """A run that differs from the explained run in one field."""

    run: str  # its id
    fidelity: str  # of both
    field: str
    value: Any  # of that field in this run
    own: Any  # of that field in the explained run
    step_s: float
    gain: float  # its throughput over that of the explained run
    low: float  # ends of the gain's 95 % interval; NaN below five common rounds
    high: float
    rounds: int  # in which both were timed; 0 if the gain compares medians of different rounds
    predicted: float | None  # the gain by the costs of the explained run, where it is known

    @property
    def name(self) -> str:
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
    def change(self) -> str | None:
        """Its name among the changes of `repro.gpipe.schedule.what_if`; None if it is none."""
        if self.field == "M" and self.value == 2 * self.own:
            return DOUBLED
        return NEVER if (self.field, self.value) == ("checkpoint", "never") else None


def variants_of(results: Results, run: Run, explanation: Explanation) -> list[Variant]:
    found = []
    for other in (other for other in results.runs if other.place == run.place):
        # The time scale of an emulated run depends on K and M, but its seconds are the device's.
        differ = [name for name in all_varied([run.spec, other.spec]) if name != "stretch"]
        if len(differ) != 1 or differ[0] not in _FIELDS:
            continue
        field = differ[0]
        gain, low, high, rounds = results.ratio(other, run)
        gain = gain if rounds else other.throughput / run.throughput
        if math.isnan(gain) or math.isnan(other.step_s):
            continue
        predicted = None
        if field != "balance":
            step_s = explanation.costs.step(other.spec.make_schedule(), run.M / other.M)
            predicted = explanation.base_s / step_s
        values = getattr(other.spec, field), getattr(run.spec, field)
        measured = other.step_s, gain, low, high, rounds
        found.append(Variant(other.id, run.fidelity, field, *values, *measured, predicted))
    return sorted(found, key=lambda variant: -variant.gain)
