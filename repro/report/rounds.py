"""Of the rounds of a run: parts of the step, modelled stage costs, its step over another's."""

from math import nan
from typing import Any

from repro.gpipe.schedule.actions import Schedule
from repro.harness.results import Results, Run
from repro.harness.statistics import interval
from repro.report.style import PARTS
from repro.report.table import number
from repro.simulate import StageCosts

Spread = tuple[float, float, float]  # median over rounds and its 95 % interval, NaN for few rounds


def parts(results: Results, row: Run | None) -> dict[str, float]:
    """Share of K x step time of each of `PARTS`, median over rounds; empty without a breakdown."""
    breakdowns = [round_.breakdown for round_ in row.rounds if round_.breakdown] if row else []
    if not breakdowns:
        return {}
    return {part: interval([shares[part] for shares in breakdowns])[0] for part in PARTS}


def costs(results: Results, row: Run) -> StageCosts | None:
    """What a cost model said of the stages of a simulated or emulated run, in the newest round."""
    modelled = [round_.modelled for round_ in row.rounds if round_.modelled]
    return StageCosts.from_plain(modelled[-1].stages.model_dump()) if modelled else None


def schedule_of(results: Results, row: Run) -> Schedule:
    """The actions of a run."""
    spec = row.spec
    return spec.make_schedule()


def step_over(results: Results, row: Run | None, base: Run | None) -> Spread:
    """Step of `row` over that of `base`, inside rounds that have both; NaN without."""
    if row is None or base is None:
        return nan, nan, nan
    return results.ratio(base, row)[:3]


def spread(found: Spread) -> str:
    """A ratio as `1.43 [1.41, 1.45]`, with ` ~` where the interval spans 1, or the number alone."""
    middle, low, high = found
    return (
        number(middle)
        if low != low
        else f"{middle:.2f} [{low:.2f}, {high:.2f}]{' ~' * (low <= 1 <= high)}"
    )


def spread_numbers(group: str, name: str, found: Spread) -> dict[Any, float]:
    """The same as three columns of numbers."""
    middle, low, high = found
    return {(group, name): middle, (group, f"{name}: low"): low, (group, f"{name}: high"): high}
