"""No record runs code by itself: a model `import:...` in a journal is not imported."""

from fakes import MACHINE, experiment, spec

from repro.cli.main import main
from repro.harness.journal import Journal
from repro.harness.results import load

MODULE = "sentinel_of_trust"
CODE = f"import:{MODULE}:layers"
SENTINEL = """
from pathlib import Path
from torch import nn

(Path(__file__).parent / "imported").touch()

def layers(**arguments):
    return [nn.Flatten(), nn.Linear(3 * 32 * 32, 10)]
"""


def test_what_a_record_names_is_shown_and_only_what_the_user_types_runs(tmp_path, monkeypatch):
    (tmp_path / f"{MODULE}.py").write_text(SENTINEL)
    monkeypatch.syspath_prepend(str(tmp_path))
    own = spec(1, 4, model=CODE, model_args={})
    results = tmp_path / "results"
    journal = Journal.of(results, MACHINE, "smoke", "tiny")
    journal.plan(experiment(own), MACHINE, accumulate=False)
    assert [each.id for each in load(results).runs] == [own.run_id(1, MACHINE.identity)]
    assert main(["report", "--results", str(results), "--plots", str(tmp_path / "plots")]) == 0
    assert not (tmp_path / "imported").exists()
    # Else this test could not fail.
    assert main(["plan", "sweep", "--model", CODE, "--K", "1", "--M", "1", "--scale", "smoke"]) == 0
    assert (tmp_path / "imported").exists()
