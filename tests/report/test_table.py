"""A table from a frame: one cell gives the text that is shown and the numbers of the csv file."""

import csv
import io
from math import nan

import pandas as pd

from repro.harness.about import About, Words
from repro.report.framed import framed, in_two
from repro.report.table import Cell, Table, cell, csv_text


def test_readers_and_the_csv_file_have_the_same_cells():
    frame = pd.DataFrame(
        {
            "model": [Cell("mlp", "MLP"), "transformer", "resnet"],
            "step (ms)": [1.25, nan, None],
            "over K=1": [1.5, 1.0, 1.0],
            "over K=1: low": [0.9, 1.0, nan],
            "over K=1: high": [2.0, 1.0, nan],
            "rounds": [1, 2, 3],
            "status": [True, "oom", "done"],
        }
    )
    shown, data = in_two(frame)
    assert shown.to_dict("list") == {
        "model": ["MLP", "Transformer", "resnet"],
        "step (ms)": ["1.25", "-", "-"],
        "over K=1": ["1.50 (0.900 to 2.00)", "1 (baseline)", "1.00"],
        "rounds": ["1", "2", "3"],
        "status": ["yes", "oom", "done"],
    }
    written = pd.read_csv(io.StringIO(Table("toy", "", "", shown, data).csv()))
    assert list(written) == list(frame)
    assert written["model"].tolist() == ["mlp", "transformer", "resnet"]
    assert written["over K=1: high"].tolist()[:2] == [2.0, 1.0]


def test_a_single_place_is_left_out_and_the_csv_file_may_hold_more():
    about = About("table2", "", "", (), {"a": Words("Of {n}", "Ours.")})
    frame = pd.DataFrame({"where": ["laptop"] * 2, "ours": [1.0, 2.0], "paper": [1.0, 3.0]})
    table = framed("a", frame, about, n=2, data=frame[["paper"]])
    assert (table.title, table.names) == ("Of 2", ["ours", "paper"])
    assert list(table.data) == ["paper"]
    assert framed("a", pd.DataFrame(), about, n=2).missing


def test_files_escape_their_own_special_characters():
    texts = ["a|b_c", "50 % & {x}", "1.50 (1.40 to 1.60)", "1 (0 to 2); 3 (2 to 4)"]
    table = Table("toy", "T_1 | <x>", "5 % ~", *in_two(pd.DataFrame([texts], columns=[*"wxyz"])))
    assert list(csv.reader(io.StringIO(table.csv())))[1] == texts
    assert r"| a\|b\_c | 50 % & {x} | 1.50 (1.40 to 1.60) |" in table.markdown()
    cells = "".join(map(cell, texts))
    assert "50 % &amp; {x}" in cells
    assert "<b>1.50</b> <small>(1.40 to 1.60)</small></td><td class=long>1 (0 to" in cells


def test_no_cell_of_a_csv_file_is_a_formula():
    """A spreadsheet computes a text that begins so; numbers stay numbers, also as texts."""
    formulas = ["=1+1", "+cmd|' /C calc'!A0", "-2+3+cmd()", "@SUM(A1)", "\t=1", "\n=1", "+37% at K"]
    others = [-3.5, 1e-3, "-3.5", "+1e-3", "-", "-7.4, 0.822", "K=2", "'-x", None]
    text = csv_text({"=name": [*formulas, *others, ["=1", 2], "a\r=1"]})
    head, *lines = [line[0] for line in csv.reader(io.StringIO(text, newline=""))]
    assert head == "'=name"
    assert lines[:7] == [f"'{formula}" for formula in formulas]
    assert lines[7:] == [*("" if cell is None else str(cell) for cell in others), "'=1;2", "a\n=1"]
