"""Simulated runs: a schedule on a virtual clock, with durations from a cost model.

Layer times come from a device's profile, a calibration, or layers that wait for known times. An
emulated run sleeps for the same times, see `Emulation`.
"""

import time
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from repro.costs import device as devices
from repro.gpipe import breakdown
from repro.gpipe.partition.layer_costs import LinkSpeed
from repro.harness.job import Job, Measured
from repro.harness.schema import Modelled, TrainRound
from repro.harness.spec import RunSpec
from repro.harness.tasks.cost_sources import Calibrated, Roofline, Source, Waits
from repro.io.redact import expanded
from repro.models import Model, build
from repro.simulate import FREE, Calibration, StageCosts, simulate

MESSAGE = 2**16  # bytes of the largest message that an emulation really sends


def run(job: Job, _rank: int, _groups: list[Any]) -> Measured:
    """Lay the schedule on a virtual clock, in this process alone."""
    return simulated(job.spec, job.device)


def simulated(spec: RunSpec, device: str, calibration: Calibration | None = None) -> Measured:
    """One simulated run; `device` says whose operators are counted.

    With a calibration layers take what they took where it was measured. Where not even
    micro-batches of one example stay within the memory, the record has no steps.
    """
    began = time.perf_counter()
    model = build(spec.model, **spec.arguments)
    if calibration is not None:
        source: Source = Calibrated(spec, model, device, calibration)
    else:
        source = Waits(spec, model) if waits(model) else Roofline(spec, model, device)
    n = source.examples()
    counts = source.cut(source.layers(max(1, n)), source.link)
    costs = source.costs(max(1, n), counts, source.link)
    schedule = spec.make_schedule()
    timeline = simulate(schedule, costs)
    modelled = {
        "batch": n * spec.M,
        "stages": costs,
        "rungs": source.cumulative_causes(n) if n else {},
        "bounds": source.bounds(n) if n else {},
        "memory": source.memory,
        "sensitivity": source.sensitivity(n) if n else {},
    }
    if n and not timeline.step_time:
        raise ValueError(f"K={spec.K}, M={spec.M}: its layers take no time at all; give them some")
    peaks = source.peaks(max(1, n), counts)
    seconds = time.perf_counter() - began
    record = TrainRound(
        step_s=[timeline.step_time] if n else [],
        loss=[],
        bubble_idle_over_total=[timeline.bubble_over_total if n else None],
        bubble_idle_over_work=[timeline.bubble_over_work if n else None],
        breakdown=dict(breakdown(timeline, schedule)) if n else {},
        peak_bytes=peaks,
        balance=list(counts),
        setup_s=seconds,
        unit=model.unit,
        labels=dict(model.labels) | ({"device": spec.profile} if spec.profile else {}),
        modelled=Modelled.model_validate(modelled),
    )
    return Measured(record, timeline if n and spec.trace else None)


def waits(model: Model) -> bool:
    """Whether the layers of a model wait where others compute."""
    return model.labels.get("compute") == "timed wait"


def check(spec: RunSpec, model: Model) -> None:
    """Raise a one-line ValueError where a modelled run has no costs, or has them twice."""
    if waits(model) == (spec.profile is not None):
        raise ValueError(
            f"profile = {spec.profile!r} with fidelity = '{spec.fidelity}': "
            + (
                "the layers of this model say what they take; leave it out"
                if spec.profile
                else _needed()
            )
        )
    if spec.profile is not None:
        devices.load(expanded(spec.profile))


def _needed() -> str:
    return (
        f"layers that compute need a device; one of {', '.join(devices.names())}, or the path of a "
        "profile"
    )


@dataclass(frozen=True)
class Emulation:
    """A model for emulation: a layer that sleeps in each stage, smaller messages, a slower link.

    Micro-batches have one example each, which is as large as a message. Messages are cut down by
    one factor for all boundaries, until the largest has `MESSAGE` bytes, and so is the link's
    speed: what is not really sent is waited for, and counts as transfer.

    Raises:
        ValueError: where gradients of a boundary are not as large as its activations, as those of a
            waiting layer are.
    """

    costs: StageCosts

    def __post_init__(self) -> None:
        for j, (onward, back) in enumerate(
            zip(self.costs.activations, self.costs.gradients, strict=True)
        ):
            if onward != back:
                raise ValueError(
                    f"fidelity = 'emulated': stage {j} sends {onward:g} bytes and gets {back:g} "
                    "back; layers that wait get back what they send; try fidelity='simulated'"
                )

    @cached_property
    def _shrunk(self) -> float:
        return min(1.0, MESSAGE / max((1.0, *self.costs.activations)))

    @property
    def model(self) -> Model:
        """K layers."""
        sizes = [*self.costs.activations, *self.costs.activations[-1:]] or [0]
        elements = [max(1, round(size * self._shrunk / 4)) for size in sizes]
        costs = self.costs
        return build(
            "timed",
            L=costs.stages,
            forward_s=list(costs.forward),
            backward_s=list(costs.backward),
            elements=elements,
            update_s=list(costs.update),
        )

    @property
    def throttle(self) -> LinkSpeed | None:
        """The link that makes up for messages that are smaller."""
        link = self.costs.link
        if link == FREE:
            return None
        return replace(link, bytes_per_second=link.bytes_per_second * self._shrunk)
