"""Ratios of runs that were measured in the same rounds (design: ratio in a round, median over rounds, bootstrap)."""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pandas import DataFrame

ROUND_KEY = ["machine", "scale", "experiment", "round"]


def ratio(rounds: "DataFrame", run: str, baseline: str) -> tuple[float, float, float, int]:
    """How many times faster `run` steps than `baseline`: (median, low, high, n).

    The ratio baseline step time / run step time is taken inside each round that measured both, the median is over
    those n rounds, and low..high is its 95 % bootstrap interval. Without a common round all three are NaN; with a
    single one the interval is NaN, because one round says nothing about its own spread.

    Args:
        rounds: `Results.rounds`, one line per run and round with `step_s` in seconds.
        run: id of the run.
        baseline: id of the run that it is divided by.
    """
    columns = [*ROUND_KEY, "step_s"]
    ours = rounds.loc[rounds["run"] == run, columns]
    base = rounds.loc[rounds["run"] == baseline, columns]
    both = ours.merge(base, on=ROUND_KEY, suffixes=("", "_base"))
    ratios = [float(x) for x in both["step_s_base"] / both["step_s"]]
    return (*interval(ratios), len(ratios))


def interval(values: list[float]) -> tuple[float, float, float]:
    """Median and 95 % bootstrap interval: (median, low, high); NaN where there is too little to tell."""
    if not values:
        return math.nan, math.nan, math.nan
    import numpy as np
    from scipy.stats import bootstrap

    median = float(np.median(values))
    if len(values) == 1:
        return median, math.nan, math.nan
    if min(values) == max(values):
        return median, median, median
    found = bootstrap((np.array(values),), np.median, method="percentile", rng=np.random.default_rng(0))
    return median, float(found.confidence_interval.low), float(found.confidence_interval.high)
