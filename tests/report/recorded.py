"""A small results folder with known numbers, written through the harness's own record."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from repro.gpipe.schedule.actions import Schedule
from repro.gpipe.schedule.kinds import make_schedule
from repro.gpipe.schedule.replay import replay
from repro.gpipe.schedule.timeline import Span, Timeline
from repro.harness.journal import Journal, Status
from repro.harness.machine import Machine
from repro.harness.predict import with_predictions
from repro.harness.request import Result
from repro.harness.results import Results, Run
from repro.harness.schema import RoundRecord, round_record
from repro.harness.spec import Experiment, Group, RunSpec, Scale
from repro.simulate.breakdown import breakdown

MACHINE = Machine("cpu", "Test CPU", 2, "gloo", "2.15.0")
# seconds of the step in each of five rounds; every round is a bit slower than the one before
STEPS = {(1, 1): 8.0, (1, 4): 8.0, (2, 1): 8.0, (2, 4): 5.0}
NOISE = {(2, 1): (1.05, 1.0, 0.95, 1.02, 0.98)}  # K=2, M=1 is once faster and once slower than K=1
DRIFT = (1.0, 1.1, 1.2, 1.3, 1.4)
MIB = 2**20


def timeline(K: int, M: int, forward: float = 0.01) -> Timeline:
    """A step with every kind of span."""
    walked = replay(
        make_schedule("gpipe", K, M), lambda kind, _stage: forward * {"F": 1, "R": 1, "B": 2}[kind]
    )
    setup = Span("setup", 0, -1, -forward / 2, 0.0)
    updates = [Span("U", j, -1, walked.step_time, walked.step_time + forward / 2) for j in range(K)]
    return Timeline((setup, *walked.spans, *updates), K)


def experiment(name: str = "table2", Ms: tuple[int, ...] = (1, 4)) -> Experiment:
    runs = tuple(
        RunSpec(model="transformer", model_args={"L": 4}, K=K, M=M, N=32)
        for K in (1, 2, 4)
        for M in Ms
    )
    group = Group(name="transformer", runs=runs)
    return Experiment(
        name=name,
        title="Throughput <of> a pipeline",
        question="How does throughput grow with K & M?",
        paper="Table 2",
        neurips="Table 2",
        rounds=len(DRIFT),
        groups=(group,),
    )


def fill(results: Path, plan: Experiment) -> None:
    """Record five rounds of the plan's runs up to K=2; K=4 is skipped."""

    def made(run: RunSpec, number: int) -> Result | None:
        if run.K > 2:
            return None
        step = STEPS[run.K, run.M] * DRIFT[number] * NOISE.get((run.K, run.M), (1,) * 5)[number]
        walked = timeline(run.K, run.M)
        values: dict[str, Any] = {"step_s": [step] * 3, "loss": [1.0], "breakdown": {}}
        values |= {"peak_bytes": [(j + 1) * 100 * MIB for j in range(run.K)]}
        values |= {"balance": [4 // run.K] * run.K, "labels": {"attention": "plain"}}
        schedule = make_schedule("gpipe", run.K, run.M)
        return Result(record(walked, schedule, unit="sequences/s", **values), walked)

    fill_with(results, plan, made, rounds=len(DRIFT))
    folder = Journal.of(results, MACHINE, "laptop", plan.name)
    for run in plan.groups[0].runs:
        if run.K > 2:
            skipped = Status("skipped", f"needs {run.K} devices")
            folder.set_status({run.run_id(plan.version, MACHINE.identity): skipped})


def fill_sweep(results: Path) -> None:
    """A sweep of one's own: plain training takes 0.1 s, K=1 as long, and K=2 half as long."""
    runs = (RunSpec(model="timed", K=K, M=2, N=8) for K in (1, 2))
    plain = RunSpec(model="timed", K=1, M=1, N=8, recompute="never")
    plan = Experiment(
        name="sweep",
        title="K x <M> sweep",
        question="How do step time & memory change?",
        groups=(Group(name="mlp", runs=(plain, *runs)),),
    )

    def made(spec: RunSpec, _round: int) -> Result:
        walked = timeline(spec.K, spec.M)
        schedule = make_schedule("gpipe", spec.K, spec.M)
        values = {"step_s": [0.1 / spec.K] * 3, "peak_bytes": [MIB] * spec.K}
        return Result(record(walked, schedule, loss=[1.0], **values), walked)

    fill_with(results, plan, made)


def changed_runs(results: Results, change: Callable[[Run], Run]) -> Results:
    """The same results with every run changed."""
    return replace(results, runs=[change(run) for run in results.runs])


def with_values(run: Run, **changed: Any) -> Run:
    """The run with fields of its records changed."""
    rounds = [replace(each, values={**each.values, **changed}) for each in run.rounds]
    return replace(run, rounds=tuple(rounds))


def no_bubble(run: Run) -> Run:
    return with_values(run, breakdown=run.rounds[-1].breakdown | {"bubble": 0.0})


def record(timeline: Timeline, schedule: Schedule, **changed: Any) -> RoundRecord:
    """What is recorded of a run whose step this is."""
    values = {
        "task": "train",
        "step_s": [timeline.step_time],
        "loss": [],
        "bubble_idle_over_total": [timeline.idle_over_total],
        "breakdown": breakdown(timeline, schedule),
        "peak_bytes": None,
        "balance": [1] * timeline.stages,
        "setup_s": 0.1,
        "unit": "examples/s",
        "labels": {},
    }
    return round_record(values | changed)


def fill_with(
    results: Path,
    plan: Experiment,
    made: Callable[[RunSpec, int], Result | None],
    rounds: int = 1,
    place: tuple[Machine, Scale] = (MACHINE, "laptop"),
) -> None:
    """Record `made(run, round)` of every run of a plan; runs without one stay planned.

    Measured steps are recorded with what the layer times of the round predict for them.
    """
    machine, scale = place
    folder = Journal.of(results, machine, scale, plan.name)
    listed: dict[str, tuple[str, RunSpec]] = {}
    for group in plan.groups:
        for run in group.runs:
            listed[run.run_id(plan.version, machine.identity)] = (group.name, run)
    folder.plan(plan, machine, accumulate=False)
    for group in plan.groups:
        for number in range(rounds):
            found = {
                name: measured
                for name, (where, run) in listed.items()
                if where == group.name and (measured := made(run, number)) is not None
            }
            if found:
                found = with_predictions({name: listed[name][1] for name in found}, found)
                folder.commit(
                    group.name, found, machine, ("2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z")
                )
                folder.set_status(dict.fromkeys(found, Status("done")))
