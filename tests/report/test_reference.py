"""The golden oracle: `plots/reference` holds exactly the tables that `results/reference` gives."""

from html import escape
from pathlib import Path

import pytest

from repro.report import page
from repro.report.declared import MOST_COLUMNS

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "plots/reference"
# They draw for 25 s of processor time, and wait for nobody. A busy machine has less to give.
pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def made(whole_reference, tmp_path_factory) -> page.Page:
    return page.write(whole_reference, tmp_path_factory.mktemp("plots"))


def test_reference_tables_are_those_of_the_reference_results(made):
    tables = {each.name: each for section in made.sections.values() for each in section["tables"]}
    assert len(tables) < 19, "and that of the verdicts"
    assert [name for name, table in tables.items() if len(table.names) > MOST_COLUMNS] == []
    written, committed = (
        {path.name: path.read_bytes() for kind in ("csv", "md") for path in at.glob(f"*.{kind}")}
        for at in (made.plots, REFERENCE)
    )
    assert written.keys() == committed.keys()
    differ = [name for name, content in written.items() if committed[name] != content]
    assert not differ, (
        "`repro report --reference` writes them anew; say in the commit why they changed"
    )


def test_figures_are_few_and_small(made):
    pictures = [each for section in made.sections.values() for each in section["figures"]]
    names = {drawn.path.stem for drawn in pictures}
    assert len(names) <= 13
    committed = {path.stem for path in REFERENCE.glob("*.svg")}
    ignored = {
        line.partition("/reference/")[2].removesuffix(".svg")
        for line in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
        if line.startswith("!plots/reference/") and line.endswith(".svg")
    }
    assert ignored <= names & committed
    for drawn in pictures:
        svg = drawn.path.read_text(encoding="utf-8")
        assert len(svg) < 200_000, drawn.path
        assert f"<title>{escape(drawn.title, quote=False)}</title>" in svg
        assert drawn.caption.count(". ") <= 1, f"at most two sentences: {drawn.caption}"
