"""Emulation: the real engine runs with stages that sleep as long as a device would compute."""

from dataclasses import replace

from repro.gpipe.schedule.timeline import Timeline
from repro.harness.job import Job, Measured, Measurer, Outcome
from repro.harness.schema import TrainRound


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
