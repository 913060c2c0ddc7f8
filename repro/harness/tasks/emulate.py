"""Emulation: the real engine runs with stages that sleep as long as a device would compute."""

from dataclasses import dataclass, replace
from functools import cached_property

from repro.gpipe.partition.layer_costs import LinkSpeed
from repro.gpipe.schedule.timeline import Timeline
from repro.harness.job import Job, Measured, Measurer, Outcome
from repro.harness.schema import TrainRound
from repro.models import Model, build
from repro.simulate import FREE, StageCosts

MESSAGE = 2**16  # bytes of the largest message that an emulation really sends


def emulate(crew: Measurer, job: Job, deadline: float) -> Outcome:
    """Simulate a run, then have K stages sleep as long as its stages compute.

    Sleeps are `stretch` times as long as on the device, and the record is divided by it: all its
    seconds but `setup_s` are the device's. Memory is not read, because layers that sleep keep
    nothing.
    """
    spec = job.spec
    twin = spec.model_copy(
        update={"fidelity": "simulated", "stretch": None, "transport": "auto", "trace": False}
    )
    outcome = crew.measure(replace(job, spec=twin, device="cpu"), deadline)
    if outcome.measured is None:
        return outcome
    simulated = outcome.measured.record
    assert isinstance(simulated, TrainRound)
    assert simulated.modelled is not None
    if not simulated.step_s:  # nothing fits the device's memory
        return outcome
    time_scale = spec.stretch or 1.0
    costs = simulated.modelled.stages.scaled(time_scale)
    outcome = crew.measure(replace(job, costs=costs, memory=False), deadline)
    if outcome.measured is None:
        return outcome
    emulated, timeline = outcome.measured.record, outcome.measured.timeline
    assert isinstance(emulated, TrainRound)
    record = emulated.model_copy(
        update={
            "step_s": [seconds / time_scale for seconds in emulated.step_s],
            "balance": simulated.balance,
            "modelled": simulated.modelled,
            "labels": emulated.labels | simulated.labels,
        }
    )
    return replace(outcome, measured=Measured(record, timeline and _rescaled(timeline, time_scale)))


def _rescaled(timeline: Timeline, time_scale: float) -> Timeline:
    """The same spans in seconds of the device, from 0."""
    start = min(span.start for span in timeline.spans)
    spans = [
        span._replace(start=(span.start - start) / time_scale, end=(span.end - start) / time_scale)
        for span in timeline.spans
    ]
    return replace(timeline, spans=tuple(spans))


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
        if self.costs.activations != self.costs.gradients:
            raise ValueError(
                f"fidelity = 'emulated': stages send {self.costs.activations} bytes and get "
                f"{self.costs.gradients} back; layers that wait get back what they send; try "
                "fidelity='simulated'"
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
