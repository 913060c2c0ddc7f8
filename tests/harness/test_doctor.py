"""The doctor's judgement of injected facts, and one look at the real machine."""

import pytest

from repro.cli import doctor
from repro.cli.doctor import Torch, gpu_trouble
from repro.harness import machine

LISTED = ["NVIDIA H200", "NVIDIA H200"]
OLD = "Tesla V100 with CUDA capability sm_70 is not compatible with the current PyTorch"


@pytest.mark.parametrize(
    ("listed", "torch", "visible", "words"),
    [
        ([], Torch(), None, []),
        (LISTED, Torch("13.2", ("NVIDIA H200",), "something else"), None, []),
        (LISTED, Torch(), None, ["2 x NVIDIA H200", "CPU build", "--torch-backend=auto"]),
        (LISTED, Torch("13.2"), "-1", ["CUDA_VISIBLE_DEVICES='-1'", "Unset"]),
        (LISTED, Torch("13.2", (), "too old"), None, ["too old", "13.2", "update the driver"]),
        (LISTED, Torch("13.2", ("Tesla V100",), OLD), None, ["sm_70", "install a build"]),
    ],
)
def test_gpu_trouble_names_the_reason_and_the_remedy(listed, torch, visible, words, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    line = gpu_trouble(listed, torch)
    assert bool(line) is bool(words)
    assert [word for word in words if word not in line] == []


def test_this_machine(monkeypatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(doctor, "gpus_of_driver", list)
    monkeypatch.setattr(machine, "cores", lambda: 2)
    monkeypatch.setattr(machine, "gpus", lambda: ())
    assert doctor.main([]) == 0
    out = capsys.readouterr().out
    for words in ("2 usable cores of", "none; torch is", "timm 1", "scale laptop unless"):
        assert words in out
    monkeypatch.setattr(doctor, "_PACKAGES", ("torch", "no-such-package"))
    assert doctor.main([]) == 1
    assert "ERROR: no-such-package is not installed" in capsys.readouterr().out
