"""Recorded runs that differ from one run in a single thing: what that change really gave, beside what is predicted.

`repro why` predicts from the costs of one step. A neighbour was run, so where the two disagree the
neighbour is right.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repro.gpipe.schedule.actions import Schedule
from repro.gpipe.schedule.what_if import EARLY, EXCEPT_LAST, MORE, NEVER, ORDER, Costs, Why
from repro.harness.results import Results, Run, load
from repro.harness.spec import TIMED, RunSpec

_FIELDS = ("M", "schedule", "checkpoint", "balance")
_WORTH = 1.02  # a gain below, without an interval, is not worth a sentence


@dataclass(frozen=True)
class Neighbour:
    """A run that is the same but for one field.

    Attributes:
        run: its id.
        fidelity: of both.
        field: of the spec.
        value: of that field there.
        own: of that field in the run that is explained.
        step_s: median step in seconds.
        gain: its throughput over that of the run that is explained.
        low: of the 95 % interval of the gain; NaN below five common rounds.
        high: of the same.
        rounds: in which both were timed; 0 where the gain is that of medians of different rounds.
        predicted_s: the step predicted for it; None where nothing predicts it.
        predicted: the gain predicted for it, likewise.
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
    def told(self) -> str:
        """`0.57x [0.55, 0.60]`, with what must be known about it."""
        if not math.isnan(self.low):
            return f"{self.gain:.2f}x [{self.low:.2f}, {self.high:.2f}]{' ~' * self.may_be_chance}"
        if self.fidelity not in TIMED:  # comes out the same every time
            return f"{self.gain:.2f}x"
        how = (
            f"{self.rounds} rounds"
            if self.rounds > 1
            else "1 round"
            if self.rounds
            else "other rounds"
        )
        return f"{self.gain:.2f}x ({how})"

    @property
    def helps(self) -> bool:
        """Whether it was faster, and not by chance."""
        return self.gain > _WORTH if math.isnan(self.low) else self.low > 1

    @property
    def may_be_chance(self) -> bool:
        """Whether the interval of its gain holds 1."""
        return self.low <= 1 <= self.high

    @property
    def change(self) -> str | None:
        """The name of the change in `repro.gpipe.schedule.what_if.CHANGES` that this is; None if it is none of them."""
        if self.field == "M":
            return next(
                (name for name, times in MORE.items() if self.value == times * self.own), None
            )
        values = {"never": NEVER, "except_last": EXCEPT_LAST, "gpipe": EARLY, "1f1b": ORDER}
        return values.get(self.value) if self.field in ("checkpoint", "schedule") else None


def neighbours(path: Path, why: Why) -> list[Neighbour]:
    """Those of the run whose spec.json is at `path`, in the same experiment; the fastest first.

    A run that was copied out of its experiment has none.
    """
    folder = path.parent.parent
    if not (folder / "experiment.json").is_file():
        return []
    results = load(folder)
    own = next((run for run in results.runs if run.id == path.parent.name), None)
    if own is None:
        return []
    compared = []
    for other in results.runs:
        field = _difference(own.spec, other.spec)
        neighbour = _compared(results, own, other, field, why) if field else None
        if neighbour is not None:
            compared.append(neighbour)
    return sorted(compared, key=lambda neighbour: -neighbour.gain)


def disproved(found: Sequence[Neighbour]) -> list[str]:
    """Changes that `why` should not recommend: those that were tried and gave nothing.

    One larger M that gave nothing disproves the prediction for all larger M: it leaves out the
    fixed cost of a micro-batch, which is what made that one slow.
    """
    names = [one.change for one in found if one.change is not None and not one.helps]
    larger = any(one.field == "M" and one.value > one.own and not one.helps for one in found)
    return [*names, *(MORE if larger else ())]


def verdict(why: Why, found: Sequence[Neighbour]) -> str:
    """One sentence: what was tried and helped, then what is predicted to help and was not tried in vain."""
    best = next((one for one in found if one.helps), None)
    left_out = disproved(found)
    parts = []
    if best is not None:
        parts.append(f"{best.fidelity} here: {best.name} instead of {best.own} gave {best.told}")
        left_out += [best.change] if best.change else []
        # M in both directions would be no advice.
        left_out += list(MORE) if best.field == "M" else []
    predicted = why.verdict_without(left_out)
    parts.append(f"predicted: {predicted}" if parts else predicted)
    parts += [
        f"{one.name} {'shows no difference' if one.may_be_chance else 'does not help'}: "
        f"{one.fidelity} {one.told}, where {one.predicted:.2f}x is predicted"
        for one in found
        if not one.helps and one.predicted is not None and one.predicted > _WORTH
    ]
    return "; ".join(parts)


def _difference(own: RunSpec, other: RunSpec) -> str | None:
    """The one field in which they differ; None if it is none of ours, or several."""
    # An emulated run's clock depends on K and M, and its seconds are the device's all the same.
    fields = [name for name in RunSpec.model_fields if name != "stretch"]
    differ = [name for name in fields if getattr(own, name) != getattr(other, name)]
    return differ[0] if len(differ) == 1 and differ[0] in _FIELDS else None


def _compared(results: Results, own: Run, other: Run, field: str, why: Why) -> Neighbour | None:
    """The other run beside this one; None where one of them was not timed."""
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
    """Seconds of a step of this neighbour by the costs of the run that is explained."""
    if field == "balance":
        return None
    other: Schedule = spec.make_schedule()
    return Costs.of(why.timeline, why.schedule).step(other, why.schedule.micro_batches / spec.M)
