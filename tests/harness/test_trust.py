"""No file runs code by itself: `import:` in every field of every format that is read, and nothing
is imported."""

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from crew import MACHINE, Crew, experiment, spec

from repro.cli.main import main
from repro.harness import catalog, runner
from repro.harness.journal import Journal
from repro.harness.outside import consent, read
from repro.harness.results import load
from repro.harness.spec import RunSpec
from repro.models import PREFIXES
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
LINK = {"latency": 0.0, "bytes_per_second": 1e9}
SPEC = spec(2, 4, fidelity="simulated", profile="v100", link=LINK).plain()
QUICK = ["--scale", "smoke", "--rounds", "1", "--wandb", "disabled"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with a module that leaves a file where it is imported; a run starts no
    process."""
    (tmp_path / f"{MODULE}.py").write_text(SENTINEL)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner, "workers", lambda *_: Crew())
    yield tmp_path
    sys.modules.pop(MODULE, None)


def assert_nothing_ran(place: Path) -> None:
    assert MODULE not in sys.modules
    assert not (place / "imported").exists()


def test_a_spec(place: Path, capfd: pytest.CaptureFixture[str]):
    path = place / "theirs.json"
    for name in SPEC:
        path.write_text(json.dumps({**SPEC, name: CODE}))
        with suppress(ValueError):
            catalog.replay(read(path, RunSpec), "--spec", lambda _: "").build("smoke")
    assert_nothing_ran(place)
    path.write_text(json.dumps({**SPEC, "model": CODE}))
    assert main(["run", "--spec", str(path), *QUICK]) == 2
    error = capfd.readouterr().err
    assert error.startswith(
        f"error: --spec {path} names code: it imports the Python module {MODULE} and calls layers"
    )
    assert error.endswith("look at both, then add --trust to run it\n")


def test_a_record_of_a_run_whose_model_is_code(place: Path):
    """What `run` recorded of a user's own model is read, shown and mirrored, and its spec is not
    measured by itself."""
    own = spec(1, 4, model=CODE, model_args={})
    results = place / "results"
    run = own.run_id(1, MACHINE.identity)
    journal = Journal.of(results, MACHINE, "smoke", "tiny")
    journal.plan(experiment(own), MACHINE, accumulate=False)
    assert [each.id for each in load(results).runs] == [run]
    page.write(load(results), place / "plots")
    assert main(["report", "--results", str(results), "--plots", str(place / "more")]) == 0
    assert main(["run", "--spec", run, "--results", str(results), *QUICK]) == 2
    assert main(["plan", "--spec", run, "--results", str(results), *QUICK[:2]]) == 2
    assert_nothing_ran(place)


def test_what_the_user_trusts_or_types_does_run(place: Path, capfd: pytest.CaptureFixture[str]):
    """Else none of these tests could fail."""
    path = place / "theirs.json"
    path.write_text(json.dumps({"model": CODE, "model_args": {"a": 1}, "K": 1, "M": 1, "N": 2}))
    assert main(["run", "--spec", str(path), "--trust", *QUICK]) == 0
    assert "calls layers, as --trust allows" in capfd.readouterr().out
    assert (place / "called").exists()


def test_the_gate_knows_every_prefix():
    """A prefix more, and somebody has to think about what a file could do with it."""
    assert set(PREFIXES) == {"timm", "import"}
    for model in ("timm:resnet18.a1_in1k", "transformer", "amoebanet-d", "timed"):
        assert consent("--spec x", model, trusted=False) == ""
    for model in ("timm:hf-hub:timm/resnet18", "timm:local-dir:/tmp", "timm:../x", "hub:x", "a b"):
        for trusted in (True, False):
            with pytest.raises(ValueError, match=r"^--spec x names the model .*correct it$"):
                consent("--spec x", model, trusted=trusted)
