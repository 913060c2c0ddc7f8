"""Ratios of runs that were measured in the same rounds (design: ratio in a round, median over rounds, bootstrap)."""

import math
import statistics
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pandas import DataFrame

# The widest interval that resampling can give, least to greatest, holds the median of n values with probability
# 1 - 2^(1 - n): 75 % of 3, 87.5 % of 4, 93.75 % of 5. Below 5 none comes near the 95 % that it would be labelled.
MIN_ROUNDS = 5
ROUND_KEY = ["machine", "scale", "experiment", "round"]


def ratio(rounds: "DataFrame", run: str, baseline: str) -> tuple[float, float, float, int]:
    """How many times the throughput of `baseline` a `run` has: (median, low, high, n).

    At the same N that is baseline step time / run step time. The ratio is taken inside each round that measured both,
    the median is over those n rounds, and low..high is its 95 % bootstrap interval. Without a common round all three
    are NaN; with fewer than `MIN_ROUNDS` the interval is NaN.

    Args:
        rounds: `Results.rounds`, one line per run and round with `throughput` in examples per second.
        run: id of the run.
        baseline: id of the run that it is divided by.
    """
    columns = [*ROUND_KEY, "throughput"]
    ours = rounds.loc[rounds["run"] == run, columns]
    base = rounds.loc[rounds["run"] == baseline, columns]
    both = ours.merge(base, on=ROUND_KEY, suffixes=("", "_base"))
    ratios = [float(x) for x in both["throughput"] / both["throughput_base"]]
    return (*interval(ratios), len(ratios))


def interval(values: list[float]) -> tuple[float, float, float]:
    """Median and 95 % bootstrap interval: (median, low, high); no interval (NaN) of fewer than `MIN_ROUNDS`."""
    if not values:
        return math.nan, math.nan, math.nan
    median = float(statistics.median(values))
    if len(values) < MIN_ROUNDS:
        return median, math.nan, math.nan
    if min(values) == max(values):
        return median, median, median
    import numpy as np
    from scipy.stats import bootstrap

    found = bootstrap((np.array(values),), np.median, method="percentile", rng=np.random.default_rng(0))
    return median, float(found.confidence_interval.low), float(found.confidence_interval.high)
