"""Ratios of runs that were measured in the same rounds: a ratio in each round, then the median."""

import math
import statistics
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

# The widest interval that resampling can give, least to greatest, holds the median of n values with
# probability 1 - 2^(1 - n): 75 % of 3, 87.5 % of 4, 93.75 % of 5. Below 5 none comes near the 95 %
# that it would be labelled.
MIN_ROUNDS = 5


def ratio(
    throughputs: Mapping[Any, float], baseline: Mapping[Any, float]
) -> tuple[float, float, float, int]:
    """How many times the throughput of a baseline a run has: (median, low, high, n).

    Both are round -> examples per second. The ratio is taken inside each of the n rounds that
    measured both; `interval` has the rest.
    """
    common = [round_ for round_ in throughputs if round_ in baseline]
    return (*interval([throughputs[each] / baseline[each] for each in common]), len(common))


def interval(values: list[float]) -> tuple[float, float, float]:
    """(median, low, high): the 95 % bootstrap interval is NaN below `MIN_ROUNDS` values."""
    return _with_interval(values, statistics.median)


def mean_interval(values: list[float]) -> tuple[float, float, float]:
    """(mean, low, high), likewise.

    For values of several seeds. Of as few as five it covers the true mean less often than 95 %.
    """
    return _with_interval(values, statistics.fmean)


def _with_interval(
    values: list[float], statistic: Callable[[list[float]], float]
) -> tuple[float, float, float]:
    center = float(statistic(values)) if values else math.nan
    if len(values) < MIN_ROUNDS:
        return center, math.nan, math.nan
    if min(values) == max(values):
        return center, center, center
    return center, *_percentile_bootstrap(tuple(values), statistic is statistics.fmean)


@cache
def _percentile_bootstrap(values: tuple[float, ...], of_mean: bool) -> tuple[float, float]:
    import numpy as np
    from scipy.stats import bootstrap

    statistic = np.mean if of_mean else np.median
    rng = np.random.default_rng(0)
    found = bootstrap((values,), statistic, method="percentile", rng=rng).confidence_interval
    return float(found.low), float(found.high)
