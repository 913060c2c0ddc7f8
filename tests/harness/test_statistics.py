import math
from collections.abc import Hashable

import numpy as np
import pytest
from scipy.stats import bootstrap

from repro.harness.statistics import interval, mean_interval, ratio


def throughputs(*seconds: float) -> dict[Hashable, float]:
    """Round -> throughput of a run with these steps; NaN stands for a round without the run."""
    return {f"g-{n}": 6 / step for n, step in enumerate(seconds) if not math.isnan(step)}


def test_ratios_are_taken_inside_rounds():
    """The machine slows down threefold in round 2; inside each round the ratio is 2."""
    median, low, high, n = ratio(throughputs(1, 3, 1, 1, 1), throughputs(2, 6, 2, 2, 2))
    assert (median, low, high, n) == (2, 2, 2, 5)


def test_rounds_without_the_baseline_do_not_count():
    median, _, _, n = ratio(throughputs(1, 1, 1), throughputs(math.nan, 3, 3))
    assert (median, n) == (3, 2)


@pytest.mark.parametrize("values", [[2.0], [2.0, 2.0], [1.0, 2.0, 3.0], [1.0, 2.0, 2.0, 3.0]])
def test_too_few_rounds_have_no_interval_and_none_no_median(values: list[float]):
    assert interval(values)[0] == 2.0
    assert all(math.isnan(x) for x in interval(values)[1:])
    assert all(math.isnan(x) for x in interval([]))


@pytest.mark.parametrize(
    "values", [[1.0, 1.1, 0.9, 1.05, 1.0], [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0]]
)
def test_the_intervals_are_scipy_s_percentile_bootstrap(values: list[float]):
    for of, statistic in ((interval, np.median), (mean_interval, np.mean)):
        found = bootstrap(
            (np.array(values),), statistic, method="percentile", rng=np.random.default_rng(0)
        ).confidence_interval
        assert of(values) == pytest.approx((statistic(values), found.low, found.high), rel=1e-15)
