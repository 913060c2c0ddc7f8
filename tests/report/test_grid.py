"""A declared table: one cell gives both the text that is shown and the csv numbers."""

from math import nan

import pandas as pd

from repro.report.grid import (
    Cell,
    Column,
    amount,
    declared,
    estimate,
    met_or_missed,
    milliseconds,
    plain,
    quotient,
    spread,
)
from repro.report.ratio import Ratio

COLUMNS: list[Column[int]] = [
    Column("K", plain),
    Column(("step", "ms"), lambda K: milliseconds(K / 1000), csv="step_s"),
    spread(("step", "over"), lambda K: estimate((K, K - 0.5, K + 0.5))),
    Column("", lambda K: Cell(K * K), csv="rounds"),
    Column("verdict", lambda K: Cell(text="slower"), csv=""),
]


def test_readers_and_the_csv_file_have_the_same_cells(tmp_path):
    table = declared("toy", "Toy", "", [1, 2], COLUMNS, "toy")
    assert table.markdown().splitlines()[2:5:2] == [
        "| K | step ms | step over | verdict |",
        "| 1 | 1.0 | 1.00 [0.50, 1.50] | slower |",
    ]
    written = pd.read_csv(table.write(tmp_path)[0])
    assert list(written) == [
        "K",
        "step_s",
        "step over",
        "step over: low",
        "step over: high",
        "rounds",
    ]
    assert written.iloc[1].tolist() == [2, 0.002, 2, 1.5, 2.5, 4]


def test_a_goal_says_by_how_much_it_is_missed():
    assert met_or_missed(1.3, at_least=1.25).text == "at least 1.25: met"
    assert met_or_missed(1.25, at_least=1.25).text == "at least 1.25: met"
    assert met_or_missed(1.2485, at_least=1.25).text == "at least 1.25: missed by 0.0015"
    assert met_or_missed(3.4, at_most=4).text == "at most 4: met"
    assert met_or_missed(5.5, at_most=4).text == "at most 4: missed by 1.5"
    assert met_or_missed(nan, at_most=4).text == "at most 4: not run"


def test_what_is_not_known_is_a_dash_and_no_number():
    assert Cell().text == amount(nan).text == estimate((nan, nan, nan)).text == "-"
    assert quotient(Ratio(1.5, nan, nan, 3, "K=1")) == Cell(1.5, "1.50", nan, nan)


def test_without_lines_it_says_what_to_run():
    table = declared("toy", "Toy", "", [], COLUMNS, "toy")
    assert table.missing
    assert "./run_all.sh toy" in table.shown["status"][0]
