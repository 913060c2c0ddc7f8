"""The errors of the cost model; the reference's tables hold those of recorded steps."""

from math import log, nan

import pandas as pd
import pytest

from experiments.costs.error import ErrorBar, bar_of


def test_the_error_bar_is_of_logarithms_and_counts_no_base():
    """Half as fast and twice as fast are equally wrong."""
    bar = bar_of(pd.Series([nan, 1.0, -0.5, 0.25, 0.0]))
    assert bar is not None
    assert bar.worst == pytest.approx(log(2))
    assert bar.median == pytest.approx((log(2) + log(1.25)) / 2)
    assert bar_of(pd.Series([nan] * 5)) is None
    low, high = ErrorBar(log(1.5), log(2)).ends(3.0)
    assert (low, high) == (pytest.approx(2.0), pytest.approx(4.5))
