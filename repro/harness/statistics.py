"""Ratios of runs that were measured in the same rounds, and their intervals.

A round is a set of fresh processes with blocks of one step of each run. A ratio is taken inside
each block, then the median.
"""

import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from functools import cache

# The widest interval that resampling can give, least to greatest, holds the median of n values with
# probability 1 - 2^(1 - n): 75 % of 3, 87.5 % of 4, 93.75 % of 5. Below 5 none comes near the 95 %
# that it would be labelled.
MIN_BLOCKS = 5
_RESAMPLES = 2000
Ratio = tuple[float, float, float, int]  # median, low, high, number of blocks


def ratio(
    throughputs: Mapping[Hashable, Sequence[float]], baseline: Mapping[Hashable, Sequence[float]]
) -> Ratio:
    """How many times the throughput of a baseline a run has: (median, low, high, n).

    Both are round -> examples per second in each of its blocks. The ratio is taken inside each of
    the n blocks that measured both; `interval_of_sets` has the rest.
    """
    sets = [
        quotients(throughputs[each], baseline[each]) for each in throughputs if each in baseline
    ]
    median, low, high = interval_of_sets(sets)
    return median, low, high, sum(map(len, sets))


def quotients(own: Sequence[float], other: Sequence[float]) -> list[float]:
    """One number over the other in each block of a round."""
    if min(len(own), len(other)) == 1:  # one of them was measured in turn, or computed
        return [each / base for each in own for base in other]
    return [each / base for each, base in zip(own, other, strict=False)]


def interval_of_sets(sets: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """(median, low, high) of the values of all blocks of all sets.

    The 95 % interval is by a bootstrap of two levels. It draws sets, since where fresh processes
    are placed is a random effect (Kalibera and Jones, Rigorous benchmarking in reasonable time,
    2013; Davison and Hinkley, Bootstrap methods, 1997, section 3.8). Inside each set it draws
    stretches of neighbouring blocks, which are disturbed alike (the circular block bootstrap of
    Politis and Romano, 1992). Of as few as three sets it is too narrow where these differ much. It
    is NaN below `MIN_BLOCKS` values.
    """
    if all(len(each) == 1 for each in sets):
        return interval([value for (value,) in sets])
    values = [value for each in sets for value in each]
    if len(values) < MIN_BLOCKS:
        return (statistics.median(values) if values else math.nan), math.nan, math.nan
    low, high = _two_levels(tuple(tuple(each) for each in sets))
    return statistics.median(values), low, high


def interval(values: list[float]) -> tuple[float, float, float]:
    """(median, low, high): the 95 % bootstrap interval is NaN below `MIN_BLOCKS` values."""
    center = statistics.median(values) if values else math.nan
    if len(values) < MIN_BLOCKS:
        return center, math.nan, math.nan
    if min(values) == max(values):
        return center, center, center
    return center, *_percentile_bootstrap(tuple(values))


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """(mean, low, high) of several seeds: the 95 % interval of Student's t, NaN below three."""
    from scipy.special import stdtrit

    center = statistics.fmean(values) if values else math.nan
    if len(values) < 3:
        return center, math.nan, math.nan
    off = statistics.stdev(values) / math.sqrt(len(values))
    off *= float(stdtrit(len(values) - 1, 0.975))
    return center, center - off, center + off


@cache
def _percentile_bootstrap(values: tuple[float, ...]) -> tuple[float, float]:
    import numpy as np
    from scipy.stats import bootstrap

    rng = np.random.default_rng(0)
    found = bootstrap((values,), np.median, method="percentile", rng=rng).confidence_interval
    return float(found.low), float(found.high)


@cache
def _two_levels(sets: tuple[tuple[float, ...], ...]) -> tuple[float, float]:
    import numpy as np

    rng = np.random.default_rng(0)
    size = round(sum(map(len, sets)) / len(sets))  # blocks that are drawn of each set
    stretch = max(1, round(size ** (1 / 3)))
    shape = (_RESAMPLES, len(sets), -(-size // stretch), 1)  # the last: places in a stretch
    chosen = rng.integers(len(sets), size=shape[:2])[:, :, None, None]
    lengths = np.array([len(each) for each in sets])
    longest = np.full((len(sets), lengths.max()), np.nan)
    for number, each in enumerate(sets):
        longest[number, : len(each)] = each
    starts = (rng.random(shape) * lengths[chosen]).astype(int)
    drawn = longest[chosen, (starts + np.arange(stretch)) % lengths[chosen]]
    medians = np.median(drawn.reshape(_RESAMPLES, -1), axis=1)
    low, high = np.percentile(medians, [2.5, 97.5])
    return float(low), float(high)
