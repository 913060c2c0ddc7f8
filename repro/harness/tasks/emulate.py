"""Emulation: the real engine runs with stages that sleep as long as a device would compute."""

from dataclasses import replace

from repro.gpipe.partition.layer_costs import LinkSpeed
from repro.gpipe.schedule.timeline import Timeline
from repro.harness.request import Measure, Request, Result, Status
from repro.harness.schema import TrainRound
from repro.harness.spec import RunSpec
from repro.models import Model, build
from repro.simulate.stage_costs import FREE

MESSAGE = 2**16  # bytes of the largest message that an emulation really sends


def prepare(measure: Measure, request: Request, deadline: float) -> Request | Status:
    """Simulate a run, to know how long its stages wait.

    Where that fails, its status.
    """
    fields = {"fidelity": "simulated", "transport": "auto", "trace": False}
    twin = RunSpec(**{**request.spec.plain(), **fields, "stretch": None, "control": None})
    found = measure(replace(request, spec=twin, device="cpu"), deadline)
    if isinstance(found, Status):
        return found
    assert isinstance(found.record, TrainRound)
    return replace(request, simulated=found.record)


def in_device_seconds(request: Request, record: TrainRound, timeline: Timeline | None) -> Result:
    """What was emulated, with the device's seconds in place of the longer ones that stages waited.

    That is all but `setup_s`.
    """
    assert request.simulated is not None
    scale = request.spec.stretch or 1.0
    changed = {
        "step_s": [seconds / scale for seconds in record.step_s],
        "balance": request.simulated.balance,
        "modelled": request.simulated.modelled,
        "labels": record.labels | request.simulated.labels,
    }
    return Result(record.model_copy(update=changed), timeline and _shrunk(timeline, scale))


def _shrunk(timeline: Timeline, scale: float) -> Timeline:
    """The same spans in seconds of the device, from 0."""
    begin = min(span.start for span in timeline.spans)
    spans = [
        span._replace(start=(span.start - begin) / scale, end=(span.end - begin) / scale)
        for span in timeline.spans
    ]
    return replace(timeline, spans=tuple(spans))


def stand_in(request: Request) -> tuple[Model, LinkSpeed | None]:
    """A model for emulation: a layer that sleeps in each stage, smaller messages, a slower link.

    Micro-batches have one example each, which is as large as a message. Messages are cut down by
    one factor for all boundaries, until the largest has `MESSAGE` bytes, and so is the link's
    speed: what is not really sent is waited for, and counts as transfer.
    """
    assert request.simulated is not None
    assert request.simulated.modelled is not None
    costs = request.simulated.modelled.stages.scaled(request.spec.stretch or 1.0)
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
