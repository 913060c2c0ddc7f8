"""The tables that say why runs are slow: what stands in them, for which runs there are any; they are folded."""

from math import isnan

import pytest
from recorded import experiment, fill

from repro.harness.results import load
from repro.report import page, why
from repro.report.table import EMPTY


def test_one_line_for_each_measured_run_of_several_stages(results):
    (table,) = why.tables(results)
    assert (table.name, table.experiment, table.folded) == ("table2_why", "table2", True)
    assert [(line["K"], line["M"]) for line in table.shown.to_dict("records")] == [(2, 1), (2, 4)]
    line = table.shown.set_index("M").loc[4]
    assert line["step (ms)"] == "200.0"
    assert [line[f"path {kind}"] for kind in ("F", "R", "B", "transfer", "gap")] == [
        *("25.0%", "20.0%", "50.0%", "0.0%", "0.0%"),
    ]
    assert line["replayed"].removeprefix("+").removeprefix("-") == "0.0%"
    assert [line[name] for name in ("M doubled", "M quadrupled", "nothing recomputed")] == [
        "1.08x",
        "1.13x",
        "1.25x",
    ]
    assert "M=16 instead of 4 at the same N would give about 1.13x" in line["verdict"]
    assert "recompute early" not in table.shown
    assert "Recompute early" not in table.note
    assert "Free link: messages arrive at once" in table.note


def test_its_numbers_are_numbers_and_shares_sum_to_one(results):
    (table,) = why.tables(results)
    assert table.data is not None
    for line in table.data.to_dict("records"):
        assert sum(
            value for name, value in line.items() if str(name).startswith("path ")
        ) == pytest.approx(1)
        assert line["replayed"] == pytest.approx(0, abs=1e-9)
        assert line["free link"] == pytest.approx(1)
        assert isnan(line["recompute early"])


def test_the_same_results_give_the_same_table(results):
    (one,), (two,) = why.tables(results), why.tables(results)
    assert one.markdown() == two.markdown()


@pytest.mark.parametrize("name", ["runtime", "peers", "table1", "simulator"])
def test_experiments_that_ask_something_else_have_none(name, tmp_path):
    fill(tmp_path, experiment(name=name))
    assert why.tables(load(tmp_path)) == []


def test_without_timelines_there_is_none_and_one_of_another_run_says_so(tmp_path):
    fill(tmp_path, experiment())
    two = next(tmp_path.glob("*/laptop/table2/transformer-K2-M1-*/timeline.parquet"))
    four = next(tmp_path.glob("*/laptop/table2/transformer-K2-M4-*/timeline.parquet"))
    four.write_bytes(two.read_bytes())
    line = why.tables(load(tmp_path))[0].shown.set_index("M").loc[4]
    assert "they are not of one run" in line["verdict"]
    assert line["replayed"] == EMPTY
    two.unlink()
    four.unlink()
    assert why.tables(load(tmp_path)) == []


def test_the_page_folds_it(folder, tmp_path):
    html = page.write(folder, tmp_path).read_text("utf-8")
    before = html[: html.index("why it is slow, measured")]
    assert before.rindex("<details") > before.rindex("</details>")
    assert (tmp_path / "table2_why.csv").exists()
