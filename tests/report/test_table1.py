"""Table 1: what a measurement on a GPU shows, and which reading explains the printed cells."""

from math import nan

import pandas as pd
import pytest

from experiments.table1.accountings import READINGS, favoured_reading
from experiments.table1.report import verdict as verdict_of


@pytest.mark.parametrize(
    ("model", "trains", "largest", "verdict"),
    [
        ("amoebanet-d", True, 320e6, "reproduced with what is inferred"),
        ("amoebanet-d", True, 400e6, "consistent: trains, but larger ones do too"),
        ("amoebanet-d", True, nan, "consistent: trains"),
        ("amoebanet-d", False, 320e6, "not reproduced: runs out of memory"),
        ("transformer", True, 320e6, "fitted: the largest that trains"),
    ],
)
def test_the_verdict_follows_from_what_trained(model, trains, largest, verdict):
    line = {"model": model, "column": "Pipeline-1", "parameters_quoted": 318e6}
    assert verdict_of(line | {"largest": trains, "parameters_largest": largest}) == verdict


@pytest.mark.parametrize(
    ("off", "text"),
    [
        ((0.2, -0.4, 0.3, -0.11), "No reading is within 10% of every printed cell of AmoebaNet-D."),
        ((0.01, -0.4, 0.3, -0.5), "one slot, M=16 is favoured by its median difference of 1.0%."),
        ((0.01, -0.4, 0.3, -0.2), "M is not identified, since the nearest is M=16 with one slot"),
        ((0.01,), "Not every reading has been counted."),
    ],
)
def test_a_favoured_reading_follows_its_numbers(off, text):
    lines = [("amoebanet-d", "Pipeline-1", *pair) for pair in zip(READINGS, off, strict=False)]
    columns = ["model", "column", "reading", "difference"]
    assert text in favoured_reading(pd.DataFrame(lines, columns=columns))
