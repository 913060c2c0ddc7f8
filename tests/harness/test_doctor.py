"""The doctor's judgement of injected facts, one look at the real machine, and its checks."""

import time

import pytest
from crew import metrics

from repro.cli import doctor, doctor_check
from repro.cli.doctor import Driver, Torch, gpu_trouble
from repro.harness import contention, machine
from repro.harness.job import Measured, Outcome
from repro.harness.schema import CheckRound, Finding, RoundRecord

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


def check_all(device: str) -> str:
    """Run every check; all lines."""
    found = list(doctor_check.run_all(2, device))
    lines = "\n".join(line for _, line in found)
    assert [good for good, _ in found] == [True] * len(doctor_check.checks(2)), lines
    return lines


@pytest.mark.slow
def test_every_check_is_good_here():
    lines = check_all("cpu")
    assert "gradients, batch norm, evaluation, dropout, unequal micro-batches" in lines
    assert "differ by 0e+00; peak memory" in lines
    assert "stage's name" in lines


@pytest.mark.gpu
def test_every_check_is_good_on_gpus():
    check_all("cuda")


def done(record: RoundRecord) -> Outcome:
    return Outcome("done", measured=Measured(record))


def found(verdict: str) -> Outcome:
    checks = {"gradients": Finding(verdict=verdict, value=1.0, evidence="off by 1")}
    facts = {"balance": [1, 1], "setup_s": 0.1, "unit": "examples/s", "labels": {}}
    return done(CheckRound(checks=checks, **facts))


def losses(off: float) -> tuple[Outcome, Outcome]:
    return done(metrics(1, 2, loss=[1.0, 1.0 + off])), done(metrics(1, 1, loss=[1.0, 1.0]))


def failed(stage: int, ago: float) -> Outcome:
    injected = f"injected failure at {time.time() - ago:.3f}"
    return Outcome("failed", f"stage {stage}: RuntimeError: {injected}")


def test_what_is_wrong_is_judged():
    assert doctor_check.unsplit("cpu", found("ok")) == "gradients"
    assert "losses of 3 steps" in doctor_check.one_stage("cpu", *losses(0))
    assert "losses of 3 steps" in doctor_check.one_stage("cuda", *losses(4e-6))
    for check, device, outcomes, words in (
        (doctor_check.unsplit, "cpu", [found("wrong")], "gradients: off by 1"),
        (doctor_check.unsplit, "cpu", [Outcome("timeout", "no result")], "no result"),
        (doctor_check.one_stage, "cpu", losses(4e-6), "losses of 3 steps differ by"),
        (doctor_check.one_stage, "cuda", losses(1e-4), "losses of 3 steps differ by"),
        (doctor_check.failure, "cpu", [failed(1, ago=9)], "reported after 9"),
        (doctor_check.failure, "cpu", [failed(0, ago=0)], "reported was only: stage 0"),
    ):
        with pytest.raises(ValueError, match=words):
            check(device, *outcomes)
