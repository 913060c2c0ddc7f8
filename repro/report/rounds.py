"""Of the rounds of a run: the parts of its step, and what its stages cost in a model."""

from repro.harness.results import Run
from repro.harness.statistics import interval
from repro.report.style import PARTS
from repro.simulate import StageCosts

Spread = tuple[float, float, float]  # median over rounds and its 95 % interval, NaN for few rounds


def parts(run: Run | None) -> dict[str, float]:
    """Share of K x step time of each of `PARTS`, median over rounds; empty without a breakdown."""
    breakdowns = [round_.breakdown for round_ in run.rounds if round_.breakdown] if run else []
    if not breakdowns:
        return {}
    return {part: interval([shares[part] for shares in breakdowns])[0] for part in PARTS}


def costs(run: Run) -> StageCosts | None:
    """The modelled stage costs of a simulated or emulated run, of the newest round."""
    modelled = [round_.modelled for round_ in run.rounds if round_.modelled]
    return StageCosts.from_plain(modelled[-1].stages.model_dump()) if modelled else None
