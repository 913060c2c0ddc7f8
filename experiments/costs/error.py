"""How far the cost model is off, as one number for other experiments to draw as an error bar."""

import statistics
from dataclasses import dataclass
from functools import lru_cache
from math import exp, log1p

from experiments.costs.cells import cells
from experiments.costs.runs import GPU
from repro.harness.frame import Frame
from repro.harness.results import Results
from repro.harness.spec import TINY


@dataclass(frozen=True)
class ErrorBar:
    """Errors of the cost model over all cells whose step is known.

    An error is |log(predicted / real)|, so that half as fast and twice as fast are equally wrong.
    Nothing was fitted to these steps, so the same error is to be expected of a step that nobody has
    measured.
    """

    median: float  # half of the cells are nearer
    worst: float  # no cell is farther off

    def ends(self, value: float) -> tuple[float, float]:
        return value / exp(self.median), value * exp(self.median)


@lru_cache(maxsize=2)
def error_bar(results: Results, column: str = "ratio") -> ErrorBar | None:
    """The error of simulated ratios, or "absolute" of throughput; None without a recorded cell.

    A ratio is over the source's own base cell, such as K=2, M=1. Steps of one GPU do not count
    there: they vary M and the rule of re-materialization, but not K. Nor do steps of tiny models,
    which are too short to say anything.
    """
    judged = cells(results)
    counted = ~judged["scale"].isin(TINY)
    if column == "ratio":
        counted &= ~judged["group"].astype(str).str.endswith(GPU)
    return bar_of(judged.loc[counted, column])


def bar_of(errors: Frame) -> ErrorBar | None:
    sizes = [abs(log1p(error)) for error in errors.dropna()]
    return ErrorBar(statistics.median(sizes), max(sizes)) if sizes else None


def meaning(bar: ErrorBar | None) -> str:
    """What the interval around a simulated ratio is, for the end of a note; empty without a bar."""
    if bar is None:
        return ""
    return (
        "; [low, high] around a simulated ratio is the cost model's median error over the steps of "
        "`costs`, which test neither tiles nor set-up"
    )
