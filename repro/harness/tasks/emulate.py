"""Emulation: the real engine runs with stages that sleep as long as a device would compute."""

from dataclasses import replace

from repro.gpipe.partition.layer_costs import LinkSpeed
from repro.gpipe.schedule.timeline import Timeline
from repro.harness.job import Job, Measure, Measured, Outcome
from repro.harness.schema import TrainRound
from repro.harness.spec import RunSpec
from repro.models import Model, build
from repro.simulate.stage_costs import FREE

MESSAGE = 2**16  # bytes of the largest message that an emulation really sends


def prepare(measure: Measure, job: Job, deadline: float) -> Job | Outcome:
    """Simulate a run, to know how long its stages wait.

    An outcome where that fails, or where nothing fits the device's memory.
    """
    fields = {"fidelity": "simulated", "transport": "auto", "trace": False}
    twin = RunSpec(**{**job.spec.plain(), **fields, "stretch": None, "control": None})
    outcome = measure(replace(job, spec=twin, device="cpu"), deadline)
    simulated = outcome.measured and outcome.measured.record
    if not isinstance(simulated, TrainRound) or not simulated.step_s:
        return outcome
    return replace(job, simulated=simulated)


def in_device_seconds(job: Job, record: TrainRound, timeline: Timeline | None) -> Measured:
    """What was emulated, with the device's seconds in place of the longer ones that stages waited.

    That is all but `setup_s`.
    """
    assert job.simulated is not None
    scale = job.spec.stretch or 1.0
    changed = {
        "step_s": [seconds / scale for seconds in record.step_s],
        "balance": job.simulated.balance,
        "modelled": job.simulated.modelled,
        "labels": record.labels | job.simulated.labels,
    }
    return Measured(record.model_copy(update=changed), timeline and _shrunk(timeline, scale))


def _shrunk(timeline: Timeline, scale: float) -> Timeline:
    """The same spans in seconds of the device, from 0."""
    begin = min(span.start for span in timeline.spans)
    spans = [
        span._replace(start=(span.start - begin) / scale, end=(span.end - begin) / scale)
        for span in timeline.spans
    ]
    return replace(timeline, spans=tuple(spans))


def stand_in(job: Job) -> tuple[Model, LinkSpeed | None]:
    """A model for emulation: a layer that sleeps in each stage, smaller messages, a slower link.

    Micro-batches have one example each, which is as large as a message. Messages are cut down by
    one factor for all boundaries, until the largest has `MESSAGE` bytes, and so is the link's
    speed: what is not really sent is waited for, and counts as transfer.
    """
    assert job.simulated is not None
    assert job.simulated.modelled is not None
    costs = job.simulated.modelled.stages.scaled(job.spec.stretch or 1.0)
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
        weight_s=list(costs.backward_weight),
        elements=[max(1, round(size * share_sent / 4)) for size in sizes],
        update_s=list(costs.update),
    )
    link = costs.link
    if link == FREE:
        return model, None
    return model, replace(link, bytes_per_second=link.bytes_per_second * share_sent)
