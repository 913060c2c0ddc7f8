"""Emulation: the real engine runs with stages that sleep as long as a device would compute."""

from dataclasses import replace

from repro.gpipe.partition.layer_costs import LinkSpeed
from repro.gpipe.schedule.timeline import Timeline
from repro.harness.job import Job, Measure, Measured, Outcome
from repro.harness.schema import TrainRound
from repro.models import Model, build
from repro.simulate.stage_costs import FREE, StageCosts

MESSAGE = 2**16  # bytes of the largest message that an emulation really sends


def emulate(measure: Measure, job: Job, deadline: float) -> Outcome:
    """Simulate a run, then have K stages sleep as long as its stages compute.

    Sleeps are `stretch` times as long as on the device, and the record is divided by it: all its
    seconds but `setup_s` are the device's. Memory is not read, because layers that sleep keep
    nothing.
    """
    fields = {"fidelity": "simulated", "stretch": None, "transport": "auto", "trace": False}
    twin = job.spec.model_copy(update=fields)
    outcome = measure(replace(job, spec=twin, device="cpu"), deadline)
    simulated = outcome.measured and outcome.measured.record
    if simulated is None:
        return outcome
    assert isinstance(simulated, TrainRound)
    assert simulated.modelled is not None
    if not simulated.step_s:  # nothing fits the device's memory
        return outcome
    scale = job.spec.stretch or 1.0
    costs = simulated.modelled.stages.scaled(scale)
    outcome = measure(replace(job, costs=costs, memory=False), deadline)
    if outcome.measured is None:
        return outcome
    emulated, timeline = outcome.measured.record, outcome.measured.timeline
    assert isinstance(emulated, TrainRound)
    changed = {
        "step_s": [seconds / scale for seconds in emulated.step_s],
        "balance": simulated.balance,
        "modelled": simulated.modelled,
        "labels": emulated.labels | simulated.labels,
    }
    measured = Measured(emulated.model_copy(update=changed), timeline and _shrunk(timeline, scale))
    return replace(outcome, measured=measured)


def _shrunk(timeline: Timeline, scale: float) -> Timeline:
    """The same spans in seconds of the device, from 0."""
    begin = min(span.start for span in timeline.spans)
    spans = [
        span._replace(start=(span.start - begin) / scale, end=(span.end - begin) / scale)
        for span in timeline.spans
    ]
    return replace(timeline, spans=tuple(spans))


def stand_in(costs: StageCosts) -> tuple[Model, LinkSpeed | None]:
    """A model for emulation: a layer that sleeps in each stage, smaller messages, a slower link.

    Micro-batches have one example each, which is as large as a message. Messages are cut down by
    one factor for all boundaries, until the largest has `MESSAGE` bytes, and so is the link's
    speed: what is not really sent is waited for, and counts as transfer.
    """
    if costs.activations != costs.gradients:
        raise ValueError(
            f"fidelity = 'emulated': stages send {costs.activations} bytes and get "
            f"{costs.gradients} back; layers that wait get back what they send; try "
            "fidelity='simulated'"
        )
    share_sent = min(1.0, MESSAGE / max((1.0, *costs.activations)))
    sizes = [*costs.activations, *costs.activations[-1:]] or [0]
    model = build(
        "timed",
        L=costs.stages,
        forward_s=list(costs.forward),
        backward_s=list(costs.backward),
        elements=[max(1, round(size * share_sent / 4)) for size in sizes],
        update_s=list(costs.update),
    )
    link = costs.link
    if link == FREE:
        return model, None
    return model, replace(link, bytes_per_second=link.bytes_per_second * share_sent)
