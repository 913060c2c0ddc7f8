"""The golden oracle: `plots/reference` holds exactly the tables that `results/reference` gives."""

from html import escape
from pathlib import Path

import pytest

from repro.report import figures
from repro.report.declared import MOST_COLUMNS
from repro.report.page import write_tables

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "plots/reference"


def test_reference_tables_are_those_of_the_reference_results(whole_reference, tmp_path):
    tables = {table.name: table for table in write_tables(whole_reference, tmp_path)}
    assert len(tables) <= 19
    assert [name for name, table in tables.items() if len(table.names) > MOST_COLUMNS] == []
    made, committed = (
        {path.name: path.read_bytes() for kind in ("csv", "md") for path in at.glob(f"*.{kind}")}
        for at in (tmp_path, REFERENCE)
    )
    assert made.keys() == committed.keys()
    differ = [name for name, content in made.items() if committed[name] != content]
    assert not differ, (
        "`repro report --reference` writes them anew; say in the commit why they changed"
    )


@pytest.mark.slow
def test_figures_are_few_and_small(whole_reference, tmp_path):
    pictures = figures.draw_all(whole_reference, tmp_path)
    names = {drawn.stem.name for drawn in pictures}
    assert len(names) <= 13
    committed = {path.stem for path in REFERENCE.glob("*.png")}
    ignored = {
        line.partition("/reference/")[2].removesuffix(".png")
        for line in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
        if line.startswith("!plots/reference/") and line.endswith(".png")
    }
    assert ignored <= names & committed
    for drawn in pictures:
        svg = drawn.stem.with_name(f"{drawn.stem.name}.svg").read_text(encoding="utf-8")
        assert len(svg) < 200_000, drawn.stem
        assert f"<title>{escape(drawn.title, quote=False)}</title>" in svg
        assert drawn.caption.count(". ") <= 1, f"at most two sentences: {drawn.caption}"
