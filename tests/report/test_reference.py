"""The golden oracle: `plots/reference` holds exactly the tables that `results/reference` gives."""

from pathlib import Path

import pytest

from repro.harness.results import load
from repro.report.page import write_tables

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "plots/reference"


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """A folder with every table of the reference results, written just now."""
    folder = tmp_path_factory.mktemp("tables")
    write_tables(load(ROOT / "results/reference"), folder)
    return folder


@pytest.mark.parametrize("kind", ["csv", "md"])
def test_reference_tables_are_those_of_the_reference_results(written, kind):
    made = {path.name: path.read_bytes() for path in written.glob(f"*.{kind}")}
    committed = {path.name: path.read_bytes() for path in REFERENCE.glob(f"*.{kind}")}
    assert made.keys() == committed.keys()
    differ = [name for name, content in made.items() if committed[name] != content]
    assert not differ, (
        "`repro report --reference` writes them anew; say in the commit why they changed"
    )
