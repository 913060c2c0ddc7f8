"""Ratios of runs that were measured in the same rounds (design: ratio in a round, median over rounds, bootstrap)."""

import math
import statistics
from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy import ndarray

# The widest interval that resampling can give, least to greatest, holds the median of n values with
# probability 1 - 2^(1 - n): 75 % of 3, 87.5 % of 4, 93.75 % of 5. Below 5 none comes near the 95 %
# that it would be labelled.
MIN_ROUNDS = 5
ROUND_KEY = ["machine", "scale", "experiment", "round"]


def ratio(
    rounds: Iterable[Mapping[str, Any]], run: str, baseline: str
) -> tuple[float, float, float, int]:
    """How many times the throughput of `baseline` a `run` has: (median, low, high, n).

    At the same N that is baseline step time / run step time. The ratio is taken inside each round
    that measured both, the median is over those n rounds, and low..high is its 95 % bootstrap
    interval. Without a common round all three are NaN; with fewer than `MIN_ROUNDS` the interval is
    NaN.

    Args:
        rounds: lines of `Results.rounds`, one a run and round, with `throughput` in examples per
            second.
        run: id of the run.
        baseline: id of the run that it is divided by.
    """
    throughputs: dict[str, dict[tuple[Any, ...], float]] = {run: {}, baseline: {}}
    for line in rounds:
        if line["run"] in throughputs:
            throughputs[line["run"]][tuple(line[name] for name in ROUND_KEY)] = line["throughput"]
    ours, base = throughputs[run], throughputs[baseline]
    ratios = [throughput / base[place] for place, throughput in ours.items() if place in base]
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
    return median, *_percentile_bootstrap(tuple(values))


@cache
def _percentile_bootstrap(values: tuple[float, ...]) -> tuple[float, float]:
    """The interval that `scipy.stats.bootstrap` gives (method="percentile", rng=default_rng(0)), without its checks."""
    import numpy as np

    medians = np.sort(np.median(np.array(values)[_resamples(len(values))], axis=-1))
    alpha = (1 - 0.95) / 2
    ends = []
    for share in (alpha, 1 - alpha):
        # Between the two nearest of the sorted medians, as scipy.stats.quantile does to the last
        # bit.
        above = (share * len(medians) + (1 - share)) % 1
        first = int(share * len(medians) + (1 - share)) - 1
        ends.append(float((1 - above) * medians[first] + above * medians[first + 1]))
    return ends[0], ends[1]


@cache
def _resamples(count: int) -> "ndarray":
    """Indices of scipy's default number of resamples of so many values, the same for every sample."""
    import numpy as np

    return np.random.default_rng(0).integers(0, count, (9999, count))
