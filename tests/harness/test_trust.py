"""No file runs code by itself: `import:` in every field of every format that is read, and nothing
is imported."""

import fcntl
import hashlib
import io
import json
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from crew import MACHINE, SPEC_SIZES, Crew, experiment, spec
from shown import RUN, SWEEP, Seen, folder_in, seen
from torch import nn

from repro.cli.main import main
from repro.cli.simulate import _calibrated as calibrated
from repro.costs.device import load as load_device
from repro.gpipe.checkpoint.files import digest as digest_of_index
from repro.gpipe.checkpoint.save_load import load as load_checkpoint
from repro.gpipe.checkpoint.save_load import save as save_checkpoint
from repro.harness import plan, runner
from repro.harness.outside import consent
from repro.harness.record import Folder
from repro.harness.results import load
from repro.harness.spec import digest
from repro.io import lock
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
CALIBRATION: dict[str, Any] = {
    "model": "transformer",
    "model_args": {"L": 1, "d": 16, "H": 32, "heads": 2, "V": 32, "T": 8, "attention": "plain"},
    "K": 2,
    "device": "Test CPU",
    "date": "2026-01-01",
    "unit": "sequences/s",
    "calibration": {
        "sizes": [1, 2],
        **{kind: [[1e-3] * 3, [2e-3] * 3] for kind in ("forward", "recompute", "backward")},
        "alone": None,
        "update": [1e-3] * 3,
        "activations": [100.0] * 2,
        "gradients": [100.0] * 2,
        "link": {"latency": 1e-6, "bytes_per_second": 1e9, "overlap": True},
    },
}
SIMULATE = ["--K", "2", "--M", "1", "--N", "2"]
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


def with_code(value: Any) -> Iterator[Any]:
    """The value with one of its parts, or one of its names, replaced by code; each in turn."""
    yield CODE
    if isinstance(value, dict):
        for name, part in value.items():
            yield from ({**value, name: changed} for changed in with_code(part))
            yield {CODE if key == name else key: other for key, other in value.items()}
    elif isinstance(value, list):
        for n, part in enumerate(value):
            yield from ([*value[:n], changed, *value[n + 1 :]] for changed in with_code(part))


def quietly(arguments: list[str]) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return main(arguments)


def test_a_spec(place: Path, capfd: pytest.CaptureFixture[str]):
    path = place / "theirs.json"
    for number, changed in enumerate(with_code(SPEC)):
        path.write_text(json.dumps(changed))
        for words in (["plan", "--scale", "smoke"], ["run", *QUICK]):
            code = quietly(
                [words[0], "--spec", str(path), "--results", str(place / str(number)), *words[1:]]
            )
            assert code == 2 or words[0] == "plan" or changed["model"] != CODE
    assert_nothing_ran(place)
    capfd.readouterr()
    path.write_text(json.dumps({**SPEC, "model": CODE}))
    assert main(["run", "--spec", str(path), *QUICK]) == 2
    error = capfd.readouterr().err
    assert error.startswith(
        f"error: --spec {path} names code: it imports the Python module {MODULE} and calls layers"
    )
    assert error.endswith("look at both, then add --trust to run it\n")


def test_a_calibration(place: Path, capfd: pytest.CaptureFixture[str]):
    path = place / "calibration.json"
    for changed in with_code(CALIBRATION["calibration"]):
        path.write_text(json.dumps({**CALIBRATION, "calibration": changed}))
        with suppress(ValueError):
            calibrated(path, "", {}, trusted=False)
    for changed in with_code({**CALIBRATION, "calibration": None}):
        if isinstance(changed, dict) and changed.get("calibration", 0) is None:
            changed["calibration"] = CALIBRATION["calibration"]
        path.write_text(json.dumps(changed))
        quietly(["simulate", "--calibration", str(path), *SIMULATE])
    assert_nothing_ran(place)
    capfd.readouterr()
    for words in ([], [CODE]):  # a name that is typed as well: the arguments are still the file's
        path.write_text(json.dumps({**CALIBRATION, "model": CODE}))
        assert main(["simulate", *words, "--calibration", str(path), *SIMULATE]) == 2
        error = capfd.readouterr().err
        assert (
            f"--calibration {path} names code: it imports the Python module {MODULE} and calls "
            "layers" in error
        )
        assert error.endswith("look at both, then add --trust to run it\n")
    assert_nothing_ran(place)


def test_a_calibration_writes_nothing_into_the_terminal_but_what_can_be_printed(
    place: Path, capfd: pytest.CaptureFixture[str]
):
    path = place / "calibration.json"
    for name in ("model", "device", "date", "unit"):
        path.write_text(json.dumps({**CALIBRATION, name: "import:a:\x1b[2J"}))
        assert main(["simulate", "--calibration", str(path), *SIMULATE]) == 2
        error = capfd.readouterr().err
        assert f"{path}: {name} = 'import:a:" in error
        assert "\x1b" not in error


def test_a_device(place: Path):
    path = place / "device.json"
    profile = load_device("v100").model_dump()
    for changed in with_code(profile):
        path.write_text(json.dumps(changed))
        with suppress(ValueError):
            load_device(path)
    texts = {
        name: {**part, "source": CODE} for name, part in profile.items() if isinstance(part, dict)
    }
    path.write_text(json.dumps({**profile, "title": CODE, **texts}))
    sizes = [f"{name}={value}" for name, value in SPEC_SIZES.items()]
    assert (
        main(["simulate", "transformer", "--model-args", *sizes, "--device", str(path), *SIMULATE])
        == 0
    )
    assert_nothing_ran(place)


RECORDS = ["experiment.json", "rounds/timed-0001.json"]
RECORDS += [f"{RUN}/{name}" for name in ("spec.json", "env.json", "status.json", "metrics.jsonl")]


@pytest.mark.parametrize("name", RECORDS)
def test_a_record(recorded: tuple[Path, Seen], place: Path, name: str):
    """Read for the tables, for `why` and for the plan of the next `run`."""
    results = place / "results"
    shutil.copytree(recorded[0], results)
    folder = folder_in(results)
    path = folder / name
    whole = path.read_text()
    lines = whole.splitlines() if name.endswith(".jsonl") else [whole]
    marker = folder / "rounds" / "timed-0001.json"
    mark_of = marker.read_text()
    for changed in with_code(json.loads(lines[0])):
        path.write_text("\n".join([json.dumps(changed), *lines[1:]]))
        if name.endswith(".jsonl"):  # as if it had been recorded so
            about = json.loads(mark_of)
            marker.write_text(
                json.dumps({**about, "runs": {**about["runs"], RUN: digest(changed)}})
            )
        with suppress(ValueError):
            load(results)
        with suppress(ValueError):
            plan.make(SWEEP, "smoke", MACHINE, results)
        quietly(["why", str(folder / RUN)])
    assert_nothing_ran(place)


def test_a_record_of_a_run_whose_model_is_code(place: Path):
    """What `run` recorded of a user's own model is read, shown and mirrored, and its spec is not
    measured by itself."""
    own = spec(1, 4, model=CODE, model_args={})
    results = place / "results"
    folder = Folder.of(results, MACHINE, "smoke", "tiny")
    run = own.run_id(1, MACHINE.identity)
    folder.write_specs(experiment(own), {run: ("timed", own)}, MACHINE.identity, accumulate=False)
    folder.set_status(run, "planned")
    assert set(load(results).specs) == {run}
    seen(results)
    page.write(results, place / "plots")
    assert main(["report", "--results", str(results), "--plots", str(place / "more")]) == 0
    assert main(["why", run, "--results", str(results)]) == 2
    assert main(["run", "--spec", str(folder.path / run / "spec.json"), *QUICK]) == 2
    assert main(["plan", "--spec", str(folder.path / run / "spec.json"), *QUICK[:2]]) == 2
    assert_nothing_ran(place)


def test_a_timeline(recorded: tuple[Path, Seen], place: Path):
    results = place / "results"
    shutil.copytree(recorded[0], results)
    path = folder_in(results) / RUN / "timeline.parquet"
    frame = pd.read_parquet(path)
    for column in frame.columns:
        frame.assign(**{column: CODE}).to_parquet(path)
        with suppress(ValueError):
            seen(results)
        quietly(["why", str(folder_in(results) / RUN)])
    assert_nothing_ran(place)


def test_the_lock(place: Path):
    owner = {"user": "a", "process": 1, "host": "b", "since": "c", "command": "d"}
    for changed in with_code(owner):
        with (place / lock.NAME).open("w+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(json.dumps(changed))
            file.flush()
            with pytest.raises(ValueError, match="measures into it"), lock.held(place, "repro run"):
                pass
    assert_nothing_ran(place)


def test_a_checkpoint(place: Path):
    module = nn.Sequential(nn.Linear(2, 2))
    folder = place / "run"
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    alone: Callable[[Any], list[Any]] = lambda value: [value]  # noqa: E731
    save_checkpoint(
        folder,
        rank=0,
        gather=alone,
        module=module,
        layers=["0"],
        optimizer=optimizer,
        step=1,
        extra={"a": "b"},
    )

    def read() -> None:
        with suppress(ValueError):
            load_checkpoint(
                folder, rank=0, gather=alone, module=module, layers=["0"], optimizer=optimizer
            )

    path = folder / "index.json"
    index = json.loads(path.read_text())
    for changed in with_code(index):
        forged = (
            {**changed, "digest": digest_of_index(changed)}
            if isinstance(changed, dict)
            else changed
        )
        path.write_text(json.dumps(forged))
        read()
    (file,) = folder.glob("*.pt")
    part = torch.load(file, weights_only=True)
    part["optimizer"] = {
        "groups": [{"names": ["0.weight", "0.bias"], "options": {"lr": 0.1}}],
        "state": {},
    }
    for changed in with_code(part):
        data = io.BytesIO()
        torch.save(changed, data)
        file.write_bytes(data.getvalue())
        stated = index["files"][file.name] | {
            "size": len(data.getvalue()),
            "sha256": hashlib.sha256(data.getvalue()).hexdigest(),
        }
        fields = {**index, "files": {file.name: stated}}
        path.write_text(json.dumps({**fields, "digest": digest_of_index(fields)}))
        read()
    assert_nothing_ran(place)


def test_what_the_user_trusts_or_types_does_run(place: Path, capfd: pytest.CaptureFixture[str]):
    """Else none of these tests could fail."""
    path = place / "theirs.json"
    path.write_text(json.dumps({"model": CODE, "model_args": {"a": 1}, "K": 1, "M": 1, "N": 2}))
    assert main(["run", "--spec", str(path), "--trust", *QUICK]) == 0
    assert "calls layers, as --trust allows" in capfd.readouterr().out
    assert (place / "called").exists()
    for name in ("called", "imported"):
        (place / name).unlink()
    sys.modules.pop(MODULE)
    path.write_text(json.dumps({**CALIBRATION, "model": CODE, "model_args": {}}))
    assert main(["simulate", "--calibration", str(path), "--trust", *SIMULATE]) == 2
    assert "is of 3 layers" in capfd.readouterr().err
    assert (place / "called").exists()


def test_the_gate_knows_every_prefix():
    """A prefix more, and somebody has to think about what a file could do with it."""
    assert set(PREFIXES) == {"timm", "import"}
    for model in ("timm:resnet18.a1_in1k", "transformer", "amoebanet-d", "timed"):
        assert consent("--spec x", model, trusted=False) == ""
    for model in (
        "timm:hf-hub:timm/resnet18",
        "timm:hf_hub:timm/resnet18",
        "timm:local-dir:/tmp",
        "timm:resnet18.x/y",
        "timm:../x",
        "hub:x",
        "a b",
    ):
        for trusted in (True, False):
            with pytest.raises(ValueError, match=r"^--spec x names the model .*correct it$"):
                consent("--spec x", model, trusted=trusted)
