"""Ratios of throughput between recorded runs, with baseline and interval, and their ideals.

A baseline shares everything with the run except what is named: `over_k1` has K=1 at the same M (the
controlled view), `over_k2m1` has K=2, M=1 (Table 2's normalisation).
"""

from dataclasses import dataclass
from functools import cache
from math import isnan, nan
from typing import Any

from repro.gpipe.schedule.kinds import SCHEDULES, make_schedule
from repro.gpipe.schedule.replay import replay
from repro.gpipe.schedule.timeline import Timeline
from repro.harness.about import NO_INTERVAL
from repro.harness.results import Results, Run
from repro.paper.theory import UNIT_COSTS
from repro.report.compare import batch_name

ITSELF = "itself"
MARKS = (
    f"[low, high]: bootstrap 95 % interval over rounds, {NO_INTERVAL}; ~ where it spans 1: no "
    "difference shown."
)


@dataclass(frozen=True)
class Ratio:
    """Throughput of a run over that of its baseline.

    Attributes:
        value: median over rounds.
        low: lower end of the bootstrap 95 % interval; NaN for few rounds.
        high: upper end of it.
        rounds: that both runs have.
        baseline: `K=1, M=4, N=32, re-materialization always`.
    """

    value: float
    low: float
    high: float
    rounds: int
    baseline: str

    @property
    def verdict(self) -> str:
        """What the interval shows: faster, slower or no difference; empty without a ratio."""
        if self.baseline == ITSELF:
            return "baseline"
        if isnan(self.value):
            return ""
        if isnan(self.low):
            return "too few rounds"
        if self.low <= 1 <= self.high:
            return "no difference shown"
        return "faster" if self.low > 1 else "slower"

    def __str__(self) -> str:
        if self.baseline == ITSELF:
            return "1 (baseline)"
        if isnan(self.value):
            return "-"
        if isnan(self.low):
            return f"{self.value:.2f}"
        mark = " ~" if self.verdict == "no difference shown" else ""
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]{mark}"


def over_k1(results: Results, run: Run) -> Ratio:
    return over(results, run, K=1)


def over_k2m1(results: Results, run: Run) -> Ratio:
    return over(results, run, K=2, M=1)


def over(results: Results, run: Run, **changed: Any) -> Ratio:
    """Throughput over the run of the same place that differs in these fields, in common rounds."""
    fields = {"K": run.K, "M": run.M} | changed
    names = [f"{field}={value}" for field, value in fields.items()]
    name = ", ".join([*names, batch_name(run), f"re-materialization {run.remat}"])
    base = results.baseline(run, **changed)
    if base is None or not run.done:
        return Ratio(nan, nan, nan, 0, f"{name} (not measured)")
    if base is run:
        return Ratio(1.0, 1.0, 1.0, len(run.rounds), ITSELF)
    return Ratio(*results.ratio(run, base), baseline=name)


@cache
def ideal(K: int, M: int, schedule: str, remat: str) -> Timeline | None:
    """This schedule with F:R:B = 1:1:2, equal stages and free messages.

    None if it is not ours, or if its ranks hold several stages, whose number is not named here. For
    "gpipe" with re-materialization always its step is `paper.theory`'s early form; with never,
    the plain one.
    """
    if schedule not in SCHEDULES or SCHEDULES[schedule].interleaved:
        return None
    return replay(make_schedule(schedule, K, M, remat), lambda action: UNIT_COSTS[action.kind])


def ideal_over_k1(K: int, M: int, schedule: str, remat: str) -> float:
    """The ideal's speedup over one stage, which has no bubble, at the same N and M."""
    return _ideal_rate(K, M, schedule, remat) / _ideal_rate(1, M, schedule, remat)


def ideal_over_k2m1(K: int, M: int, schedule: str, remat: str) -> float:
    """The ideal in Table 2's normalisation, at one fixed N."""
    return _ideal_rate(K, M, schedule, remat) / _ideal_rate(2, 1, schedule, remat)


def _ideal_rate(K: int, M: int, schedule: str, remat: str) -> float:
    """Mini-batches per time, in units of the forward work of the whole model and mini-batch."""
    timeline = ideal(K, M, schedule, remat)
    return nan if timeline is None else K * M / timeline.step_time
