"""In which range simulated numbers lie."""

from typing import Any

import pandas as pd
import pytest

from experiments.costs import error
from repro.harness.spec import RunSpec


def test_a_range_is_of_its_setting_or_of_any(monkeypatch: pytest.MonkeyPatch):
    """Half as fast and twice as fast are equally wrong; a base and tiny models do not count."""
    small: dict[str, Any] = {"N": 64, "M": 32, "K": 1, "group": "p40", "scale": "laptop"}
    lines = [small | {"absolute": 0.1, "ratio": off} for off in (None, 1.0, -0.5, 1.0, -0.5, 1.0)]
    lines += [small | {"M": 1, "absolute": 0.1, "ratio": 0.25}] * 3
    lines += [small | {"scale": "smoke", "absolute": 9.0, "ratio": 9.0}]
    monkeypatch.setattr(error, "cells", lambda _: pd.DataFrame(lines))
    error.bars.cache_clear()
    results: Any = None
    known = error.bars(results).iloc[:3].set_index("setting")
    assert list(known["ratio known"]) == [5, 3, 8]
    assert known.at["micro-batch at most 4, K at most 2", "ratio median"] == pytest.approx(100)
    for M in (32, 1):  # of M=1 three are too few, so the range is that of all eight
        run = RunSpec(model="timed", model_args={"L": 1}, K=1, M=M, N=64)
        assert error.with_range(results, 3.0, run) == pytest.approx((3.0, 1.5, 6.0))
    assert known.at["micro-batch above 4, K at most 2", "ratio 90 %"] == pytest.approx(25)
    error.bars.cache_clear()
