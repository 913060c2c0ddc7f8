"""The doctor's judgement of injected facts, and one look at the real machine."""

from dataclasses import replace
from pathlib import Path

import pytest

from repro.cli import doctor
from repro.cli.doctor import Device, Driver, Facts, Torch, gpu_trouble
from repro.harness import machine

H200 = Device("NVIDIA H200", (9, 0), 139.8)
V100 = Device("Tesla V100-SXM2-16GB", (7, 0), 15.8)
DRIVER = Driver(("NVIDIA H200", "NVIDIA H200"), "580.82", "13.0")
GOOD = Torch(cuda="13.2", compiled=("sm_75", "sm_80", "sm_90", "sm_100"), devices=(H200, H200))
FACTS = Facts(
    python="3.12.4",
    packages={"torch": "2.15.0", "timm": "1.0.31"},
    cpu="AMD EPYC",
    cores=2,
    cores_installed=8,
    memory=24.0,
    memory_free=20.0,
    disk_free=70.0,
    torch=replace(GOOD, threads=2, backends={"gloo": True, "nccl": True, "mps": False}),
    driver=DRIVER,
    visible=None,
    results=Path("results"),
    results_writable=True,
    wandb_key=True,
    scale="node",
    why="2 GPUs are usable",
)


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
        (
            DRIVER,
            Torch(cuda="13.2", error="CUDA unknown error"),
            None,
            ["CUDA unknown error", "restart"],
        ),
        (DRIVER, replace(GOOD, devices=(H200, V100)), None, ["V100", "sm_70", "older GPUs"]),
    ],
)
def test_gpu_trouble_names_the_reason_and_the_remedy(
    driver: Driver, torch: Torch, visible: str | None, words: list[str]
) -> None:
    line = gpu_trouble(driver, torch, visible)
    assert bool(line) is bool(words)
    assert [word for word in words if word not in line] == []
    assert "\n" not in line


@pytest.mark.parametrize(
    ("capability", "compiled", "expected"),
    [
        ((9, 0), ("sm_90a",), True),
        ((8, 9), ("sm_80", "sm_90"), True),
        ((12, 0), ("sm_100",), False),
        ((12, 0), ("sm_90", "compute_90"), True),
        ((7, 0), ("sm_75",), False),
    ],
)
def test_compiled_for(
    capability: tuple[int, int], compiled: tuple[str, ...], expected: bool
) -> None:
    device = Device("GPU", capability, 16.0)
    assert (
        gpu_trouble(DRIVER, Torch(cuda="13.2", compiled=compiled, devices=(device,))) == ""
    ) is expected


def test_driver_is_read_from_nvidia_smi() -> None:
    listed = "NVIDIA H200, 580.82.07\nNVIDIA H200, 580.82.07\n"
    shown = "| NVIDIA-SMI 580.82.07   Driver Version: 580.82.07   CUDA Version: 13.0  |"
    assert doctor.parse_driver(listed, shown) == Driver(
        ("NVIDIA H200", "NVIDIA H200"), "580.82.07", "13.0"
    )
    assert doctor.parse_driver("No devices were found\n", shown).gpus == ()


def test_a_good_machine_has_no_problems() -> None:
    assert doctor.problems(FACTS) == []
    text = dict(doctor.rows(FACTS))
    assert text["processor"] == "AMD EPYC: 2 usable cores of 8"
    assert text["GPUs, by torch"].startswith("NVIDIA H200 (140 GiB, sm_90), ")
    assert text["W&B"] == "offline unless --wandb online; API key set"
    assert any("on GPUs: K up to 2" in line for line in doctor.abilities(FACTS))


def test_each_problem_is_one_line_that_says_what_to_do() -> None:
    bad = replace(
        FACTS,
        packages={"torch": "2.15.0", "timm": ""},
        torch=Torch(),
        results_writable=False,
        scale="laptop",
    )
    lines = doctor.problems(bad)
    assert len(lines) == 3
    assert "without CUDA" in lines[0]
    assert lines[1] == "timm is not installed: run `./run_all.sh --setup-only`"
    assert "--results" in lines[2]


def test_report_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "_driver", Driver)
    monkeypatch.setenv("WANDB_API_KEY", "a-secret-key")
    assert doctor.print_report(tmp_path / "new" / "results") == 0
    out = capsys.readouterr().out
    assert "usable cores" in out
    assert "gloo yes" in out
    assert "API key set" in out
    assert "a-secret-key" not in out
    assert not (tmp_path / "new").exists(), "looking leaves nothing behind"


def test_a_busy_machine_is_told_and_is_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(machine, "cores", lambda: 2)
    for share, busy in ((None, False), (0.02, False), (0.8, True)):
        monkeypatch.setattr(doctor, "gather", lambda _, share=share: replace(FACTS, load=share))
        assert doctor.print_report() == 0
        output = capsys.readouterr().out
        assert ("WARNING: this machine is busy" in output) is busy
        assert "load" in output
    assert "other processes take 1.6 of 2 cores" in output
