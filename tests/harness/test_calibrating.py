"""`repro calibrate`: this machine as a profile, and a model's layers as a file."""

import json

import pytest

from repro.cli.main import main
from repro.costs import device
from repro.harness import machine
from repro.harness.outside import read
from repro.harness.schema import CalibrationFile

pytestmark = pytest.mark.filterwarnings("default")  # torch's own, about its process groups
SIZES = ["L=1", "d=16", "H=32", "heads=2", "V=32", "T=8"]


def test_this_machine_becomes_a_profile(tmp_path, capsys, monkeypatch):
    """As it is fitted on all processes at once."""
    fitted = device.load("v100").model_copy(update={"name": "here"})
    monkeypatch.setattr("repro.gpipe.launch", lambda *_, stages: [fitted] * stages)
    monkeypatch.setattr(machine, "cores", lambda: 2)
    assert main(["calibrate", "--results", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    (path,) = tmp_path.glob("*/device.json")
    assert device.load(path) == fitted
    for words in ("K=2 processes at once", "GFLOP/s", "on its host", f"--device {path}"):
        assert words in told
    assert main(["calibrate", "--K", "3"]) == 2
    assert "--K 3: allowed is 2 to 2" in capsys.readouterr().err


def test_layers_are_timed_together_and_in_turn(tmp_path, capsys):
    """And `repro simulate` takes the file."""
    path = tmp_path / "own.json"
    words = ["calibrate", "transformer", "--model-args", *SIZES, "--K", "2", "--N", "6"]
    words += ["--smallest", "2", "--output", str(path), "--results", str(tmp_path)]
    assert main(words) == 0
    told = capsys.readouterr().out
    for said in ("F, R and B of each layer", "B n=2 (ms)", "B n=4", "F alone"):
        assert said in told
    file = read(path, CalibrationFile)
    assert file.model_args == {"L": 1, "d": 16, "H": 32, "heads": 2, "V": 32, "T": 8}
    found = file.calibration
    assert found.sizes == (2, 4)
    assert found.alone is not None
    assert [len(row) for row in found.alone.backward] == [3, 3]
    assert all(seconds > 0 for row in found.alone.backward for seconds in row)
    words = ["--calibration", str(path), "--K", "2", "--M", "1", "2", "--N", "4", "--json"]
    assert main(["simulate", *words]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["model"], len(answer["points"])) == ("transformer", 2)
