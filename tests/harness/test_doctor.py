"""The doctor's judgement of injected facts, one look at the real machine, and its checks."""

import multiprocessing
import time
from dataclasses import replace
from pathlib import Path

import pytest
from crew import metrics

from repro.cli import doctor, doctor_check
from repro.cli.doctor import Device, Driver, Torch, gpu_trouble
from repro.cli.doctor_check import Bench, Broken
from repro.harness import contention, machine
from repro.harness.job import Job, Measured, Outcome
from repro.harness.schema import CheckRound, Finding, RoundRecord

H200 = Device("NVIDIA H200", (9, 0), 139.8 * doctor.GIB)
V100 = Device("Tesla V100-SXM2-16GB", (7, 0), 15.8 * doctor.GIB)
DRIVER = Driver(("NVIDIA H200", "NVIDIA H200"), "580.82", "13.0")
GOOD = Torch(cuda="13.2", compiled=("sm_75", "sm_80", "sm_90", "sm_100"), devices=(H200, H200))


def compiled(capability: tuple[int, int], *architectures: str) -> Torch:
    return Torch(cuda="13.2", compiled=architectures, devices=(Device("GPU", capability, 2e10),))


@pytest.mark.parametrize(
    ("driver", "torch", "visible", "words"),
    [
        (Driver(), Torch(), None, []),
        (DRIVER, GOOD, None, []),
        (DRIVER, Torch(), None, ["2 x NVIDIA H200", "without CUDA", "--torch-backend=auto"]),
        (DRIVER, Torch(cuda="13.2"), "", ["CUDA_VISIBLE_DEVICES=''", "unset"]),
        (DRIVER, Torch(cuda="13.2"), "-1", ["CUDA_VISIBLE_DEVICES='-1'", "unset"]),
        (
            replace(DRIVER, version="550.54", cuda="12.4"),
            Torch(cuda="13.2", error="The NVIDIA driver on your system is too old"),
            "0",
            ["driver 550.54 supports CUDA up to 12.4", "built for 13.2", "update the driver"],
        ),
        (DRIVER, Torch(cuda="13.2", error="CUDA unknown error"), None, ["unknown", "restart"]),
        (DRIVER, replace(GOOD, devices=(H200, V100)), None, ["V100", "sm_70", "older GPUs"]),
        (DRIVER, compiled((9, 0), "sm_90a"), None, []),
        (DRIVER, compiled((8, 9), "sm_80", "sm_90"), None, []),
        (DRIVER, compiled((12, 0), "sm_100"), None, ["sm_120"]),
        (DRIVER, compiled((12, 0), "sm_90", "compute_90"), None, []),
    ],
)
def test_gpu_trouble_names_the_reason_and_the_remedy(
    driver: Driver, torch: Torch, visible: str | None, words: list[str]
):
    line = gpu_trouble(driver, torch, visible)
    assert bool(line) is bool(words)
    assert [word for word in words if word not in line] == []
    assert "\n" not in line


def test_the_driver_is_read_from_nvidia_smi():
    listed = "NVIDIA H200, 580.82.07\nNVIDIA H200, 580.82.07\n"
    shown = "| NVIDIA-SMI 580.82.07   Driver Version: 580.82.07   CUDA Version: 13.0  |"
    found = doctor.parse_driver(listed, shown)
    assert found == Driver(("NVIDIA H200", "NVIDIA H200"), "580.82.07", "13.0")
    assert doctor.parse_driver("No devices were found\n", shown).gpus == ()


@pytest.mark.parametrize("busy", [False, True])
def test_this_machine(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    busy: bool,
):
    monkeypatch.setattr(doctor, "the_driver", Driver)
    monkeypatch.setattr(machine, "cores", lambda: 2)
    monkeypatch.setattr(contention.CpuShare, "share_soon", lambda _: 0.8 if busy else 0.0)
    monkeypatch.setenv("WANDB_API_KEY", "a-secret-key")
    assert doctor.print_report(tmp_path / "new" / "results") == 0
    out = capsys.readouterr().out
    assert "2 usable cores of" in out
    assert "gloo yes" in out
    assert "API key set" in out
    assert "a-secret-key" not in out
    assert not (tmp_path / "new").exists(), "looking leaves nothing behind"
    assert ("WARNING: this machine is busy" in out) is busy
    assert f"other processes take {1.6 if busy else 0.0} of 2 cores" in out


def test_each_problem_is_one_line_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "the_driver", lambda: DRIVER)
    monkeypatch.setattr(doctor, "the_torch", Torch)
    installed = machine.installed
    monkeypatch.setattr(machine, "installed", lambda name: installed(name) * (name != "timm"))
    _, (gpu, package, folder) = doctor.examine(Path("/proc/results"), None)
    assert "without CUDA" in gpu
    assert package == "timm is not installed: run `./run_all.sh --setup-only`"
    assert folder == "/proc/results cannot be written: choose another folder with --results"


class Answers:
    """Gives these outcomes, one for each run that is asked for."""

    def __init__(self, *answers: Outcome | RoundRecord) -> None:
        self.outcomes = [
            answer if isinstance(answer, Outcome) else Outcome("done", measured=Measured(answer))
            for answer in answers
        ]

    def ready(self) -> None:
        return None

    def measure(self, job: Job, deadline: float) -> Outcome:
        return self.outcomes.pop(0)


def bench(*answers: Outcome | RoundRecord, device: str = "cpu") -> Bench:
    return Bench(Answers(*answers), 2, device, 1.0)


def check_all(device: str) -> str:
    """Run every check, with time for a loaded machine; all lines."""
    before = set(multiprocessing.active_children())
    found = list(doctor_check.run_all(2, device, deadline=100))
    lines = "\n".join(line for _, line in found)
    assert [good for good, _ in found] == [True] * 7, lines
    assert set(multiprocessing.active_children()) == before
    return lines


@pytest.mark.slow
def test_every_check_is_good_here():
    lines = check_all("cpu")
    assert "gradients, batch norm, evaluation, dropout, unequal micro-batches" in lines
    assert "differ by 0e+00, K=2 against K=1" in lines
    assert "stage's name" in lines


@pytest.mark.gpu
def test_every_check_is_good_on_gpus():
    check_all("cuda")


def test_a_hang_is_a_result_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch):
    checks = {
        "never": lambda bench: str(bench.measure("import:faulty:hangs", {})),
        "next": lambda bench: "went on",
    }
    monkeypatch.setattr(doctor_check, "CHECKS", checks)
    before = set(multiprocessing.active_children())
    (good, line), following = doctor_check.run_all(2, "cpu", deadline=1)
    assert not good
    assert "no result within 1 s" in line
    assert "(try " in line
    assert following[0]
    assert set(multiprocessing.active_children()) == before


def test_what_is_wrong_is_judged():
    def record(verdict: str) -> CheckRound:
        found = {"gradients": Finding(verdict=verdict, value=1.0, evidence="off by 1")}
        return CheckRound(checks=found, balance=[1, 1], setup_s=0.1, unit="examples/s", labels={})

    assert doctor_check.unsplit(bench(record("ok"))) == "gradients"
    with pytest.raises(Broken, match=r"gradients: off by 1 \(try another"):
        doctor_check.unsplit(bench(record("wrong")))
    for off, device, good in [
        (0, "cpu", 1),
        (4e-6, "cuda", 1),
        (4e-6, "cpu", 0),
        (1e-4, "cuda", 0),
    ]:
        answers = metrics(1, 2, loss=[1.0, 1.0 + off]), metrics(1, 1, loss=[1.0, 1.0])
        if good:
            assert "losses of 3 steps" in doctor_check.same_losses(bench(*answers, device=device))
        else:
            with pytest.raises(Broken, match="losses of 3 steps differ by"):
                doctor_check.same_losses(bench(*answers, device=device))
    for stage, ago, words in [(1, 9, "reported after 9"), (0, 0, "reported was only: stage 0")]:
        reason = f"stage {stage}: RuntimeError: injected failure at {time.time() - ago:.3f}"
        with pytest.raises(Broken, match=words):
            doctor_check.failure(bench(Outcome("failed", reason)))
