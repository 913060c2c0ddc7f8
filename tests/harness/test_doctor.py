"""The doctor's judgement of injected facts, and one look at the real machine."""

import pytest

from repro.cli import doctor
from repro.cli.doctor import Driver, Torch, gpu_trouble
from repro.harness import contention, machine

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


@pytest.mark.parametrize("busy", [False, True])
def test_this_machine(tmp_path, monkeypatch, capsys: pytest.CaptureFixture[str], busy: bool):
    monkeypatch.setattr(doctor, "the_driver", Driver)
    monkeypatch.setattr(machine, "cores", lambda: 2)
    monkeypatch.setattr(contention.CpuShare, "share_soon", lambda _: 0.8 if busy else 0.0)
    monkeypatch.setenv("WANDB_API_KEY", "a-secret-key")
    assert doctor.main(["--results", str(tmp_path / "new" / "results")]) == 0
    out = capsys.readouterr().out
    for words in ("2 usable cores of", "gloo yes", "API key set", "scale laptop when none"):
        assert words in out
    assert "a-secret-key" not in out
    assert not (tmp_path / "new").exists(), "looking leaves nothing behind"
    assert ("WARNING: this machine is busy" in out) is busy
    assert f"other processes take {1.6 if busy else 0.0} of 2 cores" in out
