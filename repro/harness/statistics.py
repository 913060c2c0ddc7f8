"""Ratios of runs that were measured in the same rounds, and their intervals.

A round is a set of fresh processes with blocks of one step of each run. A ratio is taken inside
each block, then the median.

A round measures a ratio until it is `decided`, or in all its blocks. If no round stopped early, the
interval is a bootstrap of 96 %. Otherwise it is the confidence sequence of 99 % over the blocks of
all rounds. That holds after every block at once, so also after the one at which measuring stopped,
where a bootstrap does not. One misses in 4 % and the other in 1 % of all cases, together in 5 %, so
both are called 95 % intervals. Simulated with recorded blocks, equal runs differ in 6 %.
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
# A ratio is decided when it is this far from 1, as a log. Closer ones take all blocks, since a
# confidence sequence is wider than a bootstrap, and peers are judged by the interval of an A/A.
_CLEAR = 0.05
_MISSED = 0.01  # of confidence sequences
_WEIGHT = 0.1  # precision of the prior of a mean over its standard deviation; see `_sequence`
Ratio = tuple[float, float, float, int]  # median, low, high, number of blocks


def ratio(
    throughputs: Mapping[Hashable, Sequence[float]],
    baseline: Mapping[Hashable, Sequence[float]],
    *,
    stopped: bool = False,
) -> Ratio:
    """How many times the throughput of a baseline a run has: (median, low, high, n).

    Both are round -> examples per second in each of its blocks. The ratio is taken inside each of
    the n blocks that measured both. `stopped`: a round of either stopped before its last block.
    """
    sets = [
        quotients(throughputs[each], baseline[each]) for each in throughputs if each in baseline
    ]
    values = [value for each in sets for value in each]
    if not stopped or len(values) < MIN_BLOCKS:
        return *interval_of_sets(sets), len(values)
    low, high = map(math.exp, _sequence([math.log(value) for value in values]))
    return statistics.median(values), low, high, len(values)


def decided(logs: Sequence[float]) -> bool:
    """Whether a ratio lies on one side of 1, by its logs in the blocks that a round has so far.

    It may be asked after every block. Bootstraps that are repeated so often would call a quarter
    of equal runs different.
    """
    if len(logs) < MIN_BLOCKS:
        return False
    low, high = _sequence(logs)
    return low > _CLEAR or high < -_CLEAR


def quotients(own: Sequence[float], other: Sequence[float]) -> list[float]:
    """One number over the other in each block of a round."""
    if min(len(own), len(other)) == 1:  # one of them was measured in turn, or computed
        return [each / base for each in own for base in other]
    return [each / base for each, base in zip(own, other, strict=False)]


def interval_of_sets(sets: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """(median, low, high) of the values of all blocks of all sets.

    The interval is by a bootstrap of two levels. It draws sets, since where fresh processes are
    placed is a random effect (Kalibera and Jones, Rigorous benchmarking in reasonable time, 2013;
    Davison and Hinkley, Bootstrap methods, 1997, section 3.8). Inside each set it draws stretches
    of neighbouring blocks, which are disturbed alike (the circular block bootstrap of Politis and
    Romano, 1992). Of as few as two sets it is too narrow where these differ much. It is NaN below
    `MIN_BLOCKS` values.
    """
    values = [value for each in sets for value in each]
    if len(values) < MIN_BLOCKS:
        return (statistics.median(values) if values else math.nan), math.nan, math.nan
    low, high = _two_levels(tuple(tuple(each) for each in sets))
    return statistics.median(values), low, high


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """(mean, low, high) of several seeds: the 95 % interval of Student's t, NaN below three."""
    from scipy.special import stdtrit

    center = statistics.fmean(values) if values else math.nan
    if len(values) < 3:
        return center, math.nan, math.nan
    off = statistics.stdev(values) / math.sqrt(len(values))
    off *= float(stdtrit(len(values) - 1, 0.975))
    return center, center - off, center + off


def _sequence(logs: Sequence[float]) -> tuple[float, float]:
    """The ends of the confidence sequence of the mean of normal values with unknown variance.

    The mixture over m / s, the mean over the standard deviation, is normal with variance
    1 / `_WEIGHT`. Over a mean of m0, the likelihood ratio of n values is sqrt(q) ((1 + x) /
    (1 + q x))^(n / 2), with q = w / (n + w) and x = (mean - m0)^2 n / ((n - 1) s^2). It exceeds
    1 / `_MISSED` at any n with that probability at most; the interval has all other m0 (Lai, On
    confidence sequences, 1976; Wang and Ramdas, Anytime-valid t-tests and confidence sequences for
    Gaussian means with unknown variance, 2025).
    """
    n = len(logs)
    q = _WEIGHT / (n + _WEIGHT)
    least = _MISSED ** (-2 / n) * q ** (-1 / n)  # q times it is below 1 from `MIN_BLOCKS` on
    off = statistics.stdev(logs) * math.sqrt((n - 1) / n * (least - 1) / (1 - q * least))
    mean = statistics.fmean(logs)
    return mean - off, mean + off


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
    low, high = np.percentile(medians, [2, 98])
    return float(low), float(high)
