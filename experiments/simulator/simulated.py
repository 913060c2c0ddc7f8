"""Simulated steps from recorded calibrations, beside the real steps of the same rounds.

They are simulated for the report and are not runs of the experiment. Each needs the calibration of
a round and the cut of the run that it is held against, which are known only when both have been
measured.
"""

import statistics
from dataclasses import dataclass, replace
from math import nan

from experiments.simulator.runs import NAME
from repro.harness.results import Results, Round, Run
from repro.harness.schema import CalibrateRound
from repro.harness.spec import RunSpec
from repro.harness.statistics import interval
from repro.report.compare import matching, rows_of
from repro.report.rounds import Spread
from repro.simulate import Calibration, settle, simulate

WAYS = ("mixed", "together", "alone")  # how layers were timed, see `simulated_steps`


@dataclass(frozen=True)
class Judged:
    """A measured or emulated run beside its simulated steps.

    Attributes:
        steps: way -> seconds of the simulated and of the real step of each round that has both.
            The way is "known" for emulated stages, whose durations are known.
    """

    run: Run
    steps: dict[str, list[tuple[float, float]]]

    @property
    def way(self) -> str:
        """The way that the goal is for: mixed, where layers were timed alone too; empty without."""
        return next((way for way in ("known", *WAYS) if way in self.steps), "")

    @property
    def simulated_s(self) -> float:
        """The simulated step of that way: median over rounds."""
        pairs = self.steps.get(self.way)
        return statistics.median(simulated for simulated, _ in pairs) if pairs else nan

    def errors(self, way: str) -> list[float]:
        """The simulated over the real step, minus 1, in percent, of each round."""
        return [100 * (simulated / real - 1) for simulated, real in self.steps.get(way, [])]

    def error(self, way: str) -> Spread:
        """Median and interval over rounds."""
        return interval(self.errors(way))


def judged_runs(results: Results) -> list[Judged]:
    runs = [run for run in rows_of(results, experiment=NAME) if run.spec.task == "train"]
    runs = [run for run in runs if run.fidelity != "simulated"]
    runs.sort(key=lambda run: (run.fidelity != "measured", run.model, run.M))
    return [_judged(results, run) for run in runs]


def _judged(results: Results, run: Run) -> Judged:
    group = matching(results.runs, place=run.place, group=run.group)
    others = [round_ for other in group for round_ in other.rounds]
    steps: dict[str, list[tuple[float, float]]] = {}
    for real in run.rounds:
        same_round = [other for other in others if other.name == real.name]
        for way, seconds in _simulated_in(same_round, run).items():
            steps.setdefault(way, []).append((seconds, real.step_s))
    return Judged(run, steps)


def _simulated_in(same_round: list[Round], run: Run) -> dict[str, float]:
    """Way -> seconds of a run's step, by what was timed or simulated in one round."""
    for other in same_round:
        if run.fidelity == "emulated" and other.modelled:
            return {"known": other.step_s}
        if run.fidelity == "measured" and isinstance(other.record, CalibrateRound):
            calibration = other.record.calibration
            return simulated_steps(calibration, run.spec, run.balance)
    return {}


def simulated_steps(
    calibration: Calibration, spec: RunSpec, balance: tuple[int, ...]
) -> dict[str, float]:
    """Seconds of a step by each way to have its layers' costs.

    "together": as timed on K processes at once. "alone": as timed while the others waited.
    "mixed": between the two, by the part of the other stages that computes meanwhile.
    """
    schedule = spec.make_schedule()
    examples = spec.N // spec.M
    together = calibration.stages(balance, examples, spec.checkpoint)
    steps = {"together": simulate(schedule, together).step_time}
    if calibration.alone is None:
        return steps
    mixed = settle(
        schedule, lambda share: calibration.stages(balance, examples, spec.checkpoint, share)
    )
    lone = calibration.alone
    only_alone = replace(calibration, **vars(lone), alone=None)
    alone = only_alone.stages(balance, examples, spec.checkpoint)
    steps["mixed"] = simulate(schedule, mixed).step_time
    steps["alone"] = simulate(schedule, alone).step_time
    return steps
