"""The doctor's judgement of injected facts, and one look at the real machine."""

import pytest

from repro.cli import doctor
from repro.cli.doctor import Driver, Torch, gpu_trouble
from repro.harness import machine

DRIVER = Driver(("NVIDIA H200", "NVIDIA H200"), "580.82")
OLD = "Tesla V100 with CUDA capability sm_70 is not compatible with the current PyTorch"


@pytest.mark.parametrize(
    ("driver", "torch", "visible", "words"),
    [
        (Driver(), Torch(), None, []),
        (DRIVER, Torch("13.2", ("NVIDIA H200",), "something else"), None, []),
        (DRIVER, Torch(), None, ["2 x NVIDIA H200", "without CUDA", "--torch-backend=auto"]),
        (DRIVER, Torch("13.2"), "", ["CUDA_VISIBLE_DEVICES=''", "unset"]),
        (DRIVER, Torch("13.2"), "-1", ["CUDA_VISIBLE_DEVICES='-1'", "unset"]),
        (DRIVER, Torch("13.2", (), "too old"), "0", ["too old (driver 580.82", "13.2", "update"]),
        (DRIVER, Torch("13.2", ("Tesla V100",), OLD), None, ["sm_70", "another build"]),
    ],
)
def test_gpu_trouble_names_the_reason_and_the_remedy(driver, torch, visible, words, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    line = gpu_trouble(driver, torch)
    assert bool(line) is bool(words)
    assert [word for word in words if word not in line] == []


def test_this_machine(monkeypatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(doctor, "the_driver", Driver)
    monkeypatch.setattr(machine, "cores", lambda: 2)
    monkeypatch.setattr(machine, "gpus", lambda: ())
    assert doctor.main([]) == 0
    out = capsys.readouterr().out
    for words in ("2 usable cores of", "none; torch is", "timm 1", "scale laptop unless"):
        assert words in out
    monkeypatch.setattr(doctor, "_PACKAGES", ("torch", "no-such-package"))
    assert doctor.main([]) == 1
    assert "ERROR: no-such-package is not installed" in capsys.readouterr().out
