"""Ratios of runs that were measured in the same rounds: a ratio in each round, then the median."""

import math
import statistics
from collections.abc import Hashable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from numpy import ndarray

# The widest interval that resampling can give, least to greatest, holds the median of n values with
# probability 1 - 2^(1 - n): 75 % of 3, 87.5 % of 4, 93.75 % of 5. Below 5 none comes near the 95 %
# that it would be labelled.
MIN_ROUNDS = 5


def ratio(
    throughputs: Mapping[Hashable, float], baseline: Mapping[Hashable, float]
) -> tuple[float, float, float, int]:
    """How many times the throughput of a baseline a run has: (median, low, high, n).

    The ratio is taken inside each round that measured both. The median is over those n rounds, and
    low..high is its 95 % bootstrap interval. Without a common round all three are NaN. With fewer
    than `MIN_ROUNDS` the interval is NaN.

    Args:
        throughputs: round -> examples per second of the run.
        baseline: the same of the run that it is divided by.
    """
    ratios = [
        throughput / baseline[round_]
        for round_, throughput in throughputs.items()
        if round_ in baseline
    ]
    return (*interval(ratios), len(ratios))


def interval(values: list[float]) -> tuple[float, float, float]:
    """(median, low, high): the 95 % bootstrap interval is NaN below `MIN_ROUNDS` values."""
    if not values:
        return math.nan, math.nan, math.nan
    median = float(statistics.median(values))
    if len(values) < MIN_ROUNDS:
        return median, math.nan, math.nan
    if min(values) == max(values):
        return median, median, median
    return median, *_percentile_bootstrap(tuple(values), "median")


def mean_interval(values: list[float]) -> tuple[float, float, float]:
    """(mean, low, high): the 95 % bootstrap interval is NaN below `MIN_ROUNDS` values.

    For values of several seeds. Of as few as five it covers the true mean less often than 95 %.
    """
    if not values:
        return math.nan, math.nan, math.nan
    mean = statistics.fmean(values)
    if len(values) < MIN_ROUNDS:
        return mean, math.nan, math.nan
    if min(values) == max(values):
        return mean, mean, mean
    return mean, *_percentile_bootstrap(tuple(values), "mean")


@cache
def _percentile_bootstrap(
    values: tuple[float, ...], statistic: Literal["median", "mean"]
) -> tuple[float, float]:
    """The interval of `scipy.stats.bootstrap` with method="percentile" and rng=default_rng(0).

    scipy checks and resamples anew for every call, which is slow.
    """
    import numpy as np

    samples = np.array(values)[_resamples(len(values))]
    of_samples = np.sort((np.median if statistic == "median" else np.mean)(samples, axis=-1))
    alpha = (1 - 0.95) / 2
    ends = []
    for share in (alpha, 1 - alpha):
        # Interpolate between the two nearest, to the last bit as scipy.stats.quantile does.
        above = (share * len(of_samples) + (1 - share)) % 1
        first = int(share * len(of_samples) + (1 - share)) - 1
        ends.append(float((1 - above) * of_samples[first] + above * of_samples[first + 1]))
    return ends[0], ends[1]


@cache
def _resamples(count: int) -> "ndarray":
    """Indices of scipy's default number of resamples; the same for every sample of this size."""
    import numpy as np

    return np.random.default_rng(0).integers(0, count, (9999, count))
