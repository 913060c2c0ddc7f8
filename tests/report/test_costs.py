"""The errors of the cost model; the reference's tables hold those of recorded steps."""

from math import log, nan

import pandas as pd
import pytest

from experiments.costs.error import ErrorBar, bar_of, error_bar
from experiments.costs.runs import SPEED, lingvo_memory


def test_the_error_bar_is_of_logarithms_and_counts_no_base():
    """Half as fast and twice as fast are equally wrong."""
    bar = bar_of(pd.Series([nan, 1.0, -0.5, 0.25, 0.0]))
    assert bar is not None
    assert bar.worst == pytest.approx(log(2))
    assert bar.median == pytest.approx((log(2) + log(1.25)) / 2)
    assert bar_of(pd.Series([nan] * 5)) is None
    low, high = ErrorBar(log(1.5), log(2)).ends(3.0)
    assert (low, high) == (pytest.approx(2.0), pytest.approx(4.5))


def test_without_results_there_is_no_error_bar(nothing):
    assert error_bar(nothing) is None


def test_published_runs_are_as_published():
    (first, speed), *_ = SPEED["torchgpipe-amoebanet-d"]()
    assert (first.K, first.M, first.N, first.balance) == (2, 1, 96, (7, 17))
    assert (first.checkpoint, first.profile, speed) == ("always", "p40", 26.733)
    resnet = [spec for spec, _ in SPEED["torchgpipe-resnet101"]()]
    assert [(spec.N, spec.M, spec.checkpoint) for spec in resnet][:3] == [
        (118, 1, "never"),
        (220, 2, "except_last"),
        (25005, 1667, "except_last"),
    ]
    assert lingvo_memory()[0].balance == (11, 12, 12, 12, 12, 12, 12, 13)
    assert [spec.model_args["L"] for spec in lingvo_memory()] == [94, 95, 110, 118] * 2
