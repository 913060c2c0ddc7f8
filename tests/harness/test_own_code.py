"""The source of a user's own model, and of what it imports beside it, belongs to the run's id."""

from pathlib import Path

import pytest
from fakes import FakeWorkers, experiment, measure, spec

from repro.harness.frame import all_runs
from repro.harness.own_code import code_of
from repro.harness.results import load

MODEL = "import:mine.models:layers"
FILES = {
    "mine/__init__.py": "raise SystemExit('nothing is run')\n",
    "mine/models.py": "from . import parts\nfrom .deep.blocks import block\nimport os, torch\n",
    "mine/parts.py": "import helpers\n",
    "mine/deep/blocks.py": "from ...mine.deep import more\n",
    "mine/deep/more.py": "",
    "helpers.py": "import repro.models\n",
    "mine/other.py": "",
    "unrelated.py": "",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_an_edit_of_what_it_imports_is_another_model(folder: Path):
    for name, text in FILES.items():
        before = code_of(MODEL)
        (folder / name).write_text(text + "# edited\n")
        assert (code_of(MODEL) == before) == (name in ("mine/other.py", "unrelated.py"))
    (folder / "broken.py").write_text("def (")
    assert code_of("import:broken:layers")
    assert code_of("import:not_there:layers") is None
    assert code_of("import:repro.models.on_gpu:bfloat16") is None


def test_an_edited_model_is_measured_again_beside_the_old_one(folder: Path, monkeypatch):
    monkeypatch.setattr("repro.harness.rehearsal.check_plans", lambda _: None)
    own = experiment(spec(1, 1, model=MODEL, model_args={}), rounds=1)
    workers = FakeWorkers()
    for text in ("", "width = 2\n"):
        (folder / "helpers.py").write_text(text)
        for _ in range(2):
            assert measure(folder / "r", workers, own, accumulate=True) == 0
    assert len(workers.requests) == 2
    rows = all_runs(load(folder / "r"))
    assert rows["differs_in"].str.contains("figures=").sum() == 2
