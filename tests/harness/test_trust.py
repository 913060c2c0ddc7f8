"""No record runs code by itself: a model `import:...` in a journal is not imported."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes import MACHINE, experiment, spec

from repro.cli.main import main
from repro.harness.journal import Journal
from repro.harness.results import load
from repro.report import page

MODULE = "sentinel_of_trust"
CODE = f"import:{MODULE}:layers"
SENTINEL = """
from pathlib import Path
from torch import nn

(Path(__file__).parent / "imported").touch()

def layers(**arguments):
    (Path(__file__).parent / "called").touch()
    return [nn.Flatten(), nn.Linear(3 * 32 * 32, 10)]
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with a module that leaves a file where it is imported."""
    (tmp_path / f"{MODULE}.py").write_text(SENTINEL)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop(MODULE, None)


def assert_nothing_ran(place: Path) -> None:
    assert MODULE not in sys.modules
    assert not (place / "imported").exists()


def test_a_record_of_a_run_whose_model_is_code(place: Path):
    """What `run` recorded of a user's own model is read and shown."""
    own = spec(1, 4, model=CODE, model_args={})
    results = place / "results"
    run = own.run_id(1, MACHINE.identity)
    journal = Journal.of(results, MACHINE, "smoke", "tiny")
    journal.plan(experiment(own), MACHINE, accumulate=False)
    assert [each.id for each in load(results).runs] == [run]
    page.write(load(results), place / "plots")
    assert main(["report", "--results", str(results), "--plots", str(place / "more")]) == 0
    assert_nothing_ran(place)


def test_what_the_user_types_does_run(place: Path):
    """Else the other test could not fail."""
    assert main(["plan", "sweep", "--model", CODE, "--K", "1", "--M", "1", "--scale", "smoke"]) == 0
    assert (place / "called").exists()
