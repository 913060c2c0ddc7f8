"""Emulate: simulate a run, then have K processes of the real engine wait as long as its devices would compute."""

from dataclasses import replace

from repro.harness.job import Job, Measurer, Outcome
from repro.simulate import StageCosts


def emulate(crew: Measurer, job: Job, deadline: float) -> Outcome:
    """Have a crew emulate a run: simulated first, then K stages wait as long, on a clock `stretch` times slower.

    What comes of it is in seconds of the device, as the simulated run is: only `setup_s` passed
    here. Memory is not read, for layers that wait keep nothing.
    """
    spec = job.spec
    twin = spec.model_copy(
        update={"fidelity": "simulated", "stretch": None, "transport": "auto", "trace": False}
    )
    outcome = crew.measure(replace(job, spec=twin, device="cpu"), deadline)
    if outcome.status != "done" or not outcome.metrics["step_s"]:
        return outcome
    stretch = spec.stretch or 1.0
    costs = StageCosts.from_plain(outcome.metrics["modelled"]["stages"]).scaled(stretch).plain()
    ran = crew.measure(replace(job, costs=costs, memory=False), deadline)
    if ran.status != "done":
        return ran
    own = {name: outcome.metrics[name] for name in ("balance", "modelled")}
    own["labels"] = ran.metrics["labels"] | outcome.metrics["labels"]
    own["step_s"] = [seconds / stretch for seconds in ran.metrics["step_s"]]
    # a slow clock would take it far from 0
    began = min((row["start"] for row in ran.timeline), default=0.0)
    spans = [
        row | {end: (row[end] - began) / stretch for end in ("start", "end")}
        for row in ran.timeline
    ]
    return replace(ran, metrics=ran.metrics | own, timeline=spans)
