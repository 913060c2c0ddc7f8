"""Is the advised plan fast? Predicted beside measured steps, and the advised plan over the best.

A predicted step has its costs from layers that were timed in the same round, as in `simulator`.
"""

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from math import nan

from matplotlib.figure import Figure

from experiments.advise.runs import NAME
from repro.harness.results import Results, Run
from repro.harness.schema import CalibrateRound
from repro.harness.spec import TINY
from repro.harness.statistics import interval
from repro.methods.named import name_of
from repro.report.compare import matching, rows_of, where
from repro.report.declared import Shown
from repro.report.grid import (
    Cell,
    Column,
    amount,
    declared,
    estimate,
    met_or_missed,
    plain,
    settings,
    spread,
)
from repro.report.ratio import NO_INTERVAL
from repro.report.table import Table
from repro.simulate import Calibration, all_reduce_seconds, exposed_seconds, settle, simulate

GOAL = 1.05  # the advised step over that of the fastest measured plan


@dataclass(frozen=True)
class Judged:
    """A measured plan with its predictions.

    Attributes:
        predicted: round -> seconds of the step that is predicted from the calibration of the round.
    """

    run: Run
    predicted: dict[str, float]

    @property
    def predicted_s(self) -> float:
        """Median over rounds."""
        return statistics.median(self.predicted.values()) if self.predicted else nan

    @property
    def error(self) -> tuple[float, float, float]:
        """The predicted over the measured step of the same round, minus 1, in percent."""
        return interval(
            [
                100 * (self.predicted[round_.name] / round_.step_s - 1)
                for round_ in self.run.rounds
                if round_.name in self.predicted
            ]
        )


@dataclass(frozen=True)
class Verdict:
    """The plans of one place: the advised one, and the fastest of the measured ones.

    Attributes:
        advised: has the shortest predicted step.
        best: has the shortest measured step.
    """

    plans: list[Judged]
    advised: Judged
    best: Judged

    @property
    def run(self) -> Run:
        return self.advised.run

    @property
    def ratio(self) -> tuple[float, float, float]:
        """The advised step over the best one in the same rounds: median and interval."""
        best = {round_.name: round_.step_s for round_ in self.best.run.rounds}
        return interval(
            [
                round_.step_s / best[round_.name]
                for round_ in self.advised.run.rounds
                if round_.name in best
            ]
        )


SHOWN = Shown(f"{NAME}_verdict")


def tables(results: Results) -> list[Table]:
    plans = judged_plans(results)
    return [plans_table(results, plans), verdict_table(results, plans)] if plans else []


def answer(tables: Mapping[str, Table]) -> str:
    table = tables[f"{NAME}_verdict"]
    if table.text("advised") == table.text("fastest measured"):
        return (
            f"The advised plan is the fastest of {table.text('plans')} measured plans (goal: its "
            f"step over that of the fastest one {table.text('goal')})."
        )
    return (
        f"The advised plan's step takes {table.text('advised over fastest')} times as long as that "
        f"of the fastest of {table.text('plans')} measured plans (goal: {table.text('goal')})."
    )


def figures(_results: Results, _rows: list[Run]) -> Iterator[tuple[str, Figure | None, str]]:
    """None: plans differ in more than K and M, so that they make no curve."""
    return iter(())


def judged_plans(results: Results) -> list[Judged]:
    """The plans of the experiment, done or not, from the shortest predicted step on."""
    runs = [run for run in rows_of(results, experiment=NAME) if run.spec.task == "train"]
    plans = [_judged(results, run) for run in runs]
    # A plan without a prediction comes last.
    return sorted(plans, key=lambda plan: (not plan.predicted, plan.predicted_s))


def _judged(results: Results, run: Run) -> Judged:
    predicted = {}
    for other in matching(results.runs, place=run.place, group=run.group):
        for round_ in other.rounds:
            if run.done and isinstance(round_.record, CalibrateRound):
                calibration = round_.record.calibration
                predicted[round_.name] = predicted_step(calibration, run)
    return Judged(run, predicted)


def predicted_step(calibration: Calibration, run: Run) -> float:
    """Seconds of a run's step from layer times, with the cut of the run."""
    spec, counts = run.spec, run.balance
    schedule = spec.make_schedule()
    examples = spec.N // spec.D // spec.M
    layers = calibration.beside_replicas(spec.D)
    costs = settle(
        schedule, lambda overlap: layers.stages(counts, examples, spec.checkpoint, overlap)
    )
    timeline = simulate(schedule, costs)
    ends = [0, *accumulate(counts)]
    of_stages = [sum(calibration.parameters[a:b]) for a, b in pairwise(ends)]
    gradients = [sum(of_stages[rank :: spec.K]) for rank in range(spec.K)]
    sums = [all_reduce_seconds(round(size), spec.D, calibration.link) for size in gradients]
    return timeline.step_time + exposed_seconds(timeline, sums)


def plans_table(results: Results, plans: list[Judged]) -> Table:
    def rank(plan: Judged, measured: bool) -> Cell:
        own = plan.run.step_s if measured else plan.predicted_s
        if not plan.predicted:
            return Cell()
        rivals = [other for other in plans if other.run.place == plan.run.place and other.predicted]
        steps = [other.run.step_s if measured else other.predicted_s for other in rivals]
        return plain(1 + sum(step < own for step in steps))

    columns: list[Column[Judged]] = [
        Column("where", lambda plan: plain(where(results, plan.run))),
        Column("method", lambda plan: plain(_method(plan.run))),
        *settings(lambda plan: plan.run, "K"),
        Column("D", lambda plan: plain(plan.run.spec.D)),
        *settings(lambda plan: plan.run, "M"),
        Column("recomputed", lambda plan: plain(plan.run.spec.checkpoint)),
        Column("rounds", _rounds),
        Column(("step (ms)", "predicted"), lambda plan: amount(1e3 * plan.predicted_s, 1)),
        Column(("step (ms)", "measured"), lambda plan: amount(1e3 * plan.run.step_s, 1)),
        spread(("error (%)", "predicted"), lambda plan: estimate(plan.error, "+.1f")),
        Column(("rank", "predicted"), partial(rank, measured=False)),
        Column(("rank", "measured"), partial(rank, measured=True)),
    ]
    note = (
        "Predicted (simulated) from layers that were timed in the same rounds; error: predicted "
        f"over measured, minus 1, median with a bootstrap 95 % interval ({NO_INTERVAL})."
    )
    title = "Predicted and measured steps of plans for two devices"
    return declared(NAME, title, note, plans, columns, NAME)


def _rounds(plan: Judged) -> Cell:
    return plain(len(plan.predicted) if plan.run.done else plan.run.status)


def verdict_table(results: Results, plans: list[Judged]) -> Table:
    """The advised plan over the best measured one, a line for each place."""
    places: dict[object, list[Judged]] = {}
    for plan in plans:
        if plan.predicted:
            places.setdefault(plan.run.place, []).append(plan)
    verdicts = [
        Verdict(
            here,
            min(here, key=lambda plan: plan.predicted_s),
            min(here, key=lambda plan: plan.run.step_s),
        )
        for here in places.values()
    ]
    columns: list[Column[Verdict]] = [
        Column("where", lambda verdict: plain(where(results, verdict.run))),
        Column("plans", lambda verdict: plain(len(verdict.plans))),
        Column("advised", lambda verdict: plain(_name(verdict.advised.run))),
        Column("fastest measured", lambda verdict: plain(_name(verdict.best.run))),
        Column(
            "advised over fastest",
            lambda verdict: estimate(verdict.ratio),
            ends=("advised over fastest: low", "advised over fastest: high"),
        ),
        Column("goal", _goal),
    ]
    note = (
        "The measured step of the plan that was predicted to be the fastest, over that of the plan "
        f"that was: median over rounds with a bootstrap 95 % interval ({NO_INTERVAL})."
    )
    title = "Is the advised plan fast?"
    return declared(f"{NAME}_verdict", title, note, verdicts, columns, NAME)


def _goal(verdict: Verdict) -> Cell:
    """Whether the goal is met; steps of tiny models are too short to say."""
    if verdict.run.scale in TINY:
        return plain("not judged: tiny models")
    return met_or_missed(verdict.ratio[0], at_most=GOAL)


def _method(run: Run) -> str:
    """The method: with K=1 a schedule says nothing."""
    spec = run.spec
    return name_of(
        library="repro",
        schedule=spec.schedule,
        K=spec.K,
        D=spec.D,
        tensor_parallel=None,
        zero=None,
    )


def _name(run: Run) -> str:
    spec = run.spec
    return f"{_method(run)}, K={spec.K}, D={spec.D}, M={spec.M}, recomputed {spec.checkpoint}"
