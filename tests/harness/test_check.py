"""The doctor's checks: what works is ok, a hang and a wrong answer are results, and no process
stays."""

import multiprocessing
from typing import Any

import pytest
import stuck
import torch
from torch import nn

from repro.cli import doctor_check, doctor_probes
from repro.cli.doctor_check import Broken, Check, Place
from repro.gpipe import Pipeline
from repro.harness import machine

CPU, GPU = Place(2, "cpu", "2 stages"), Place(2, "cuda", "2 stages")


def all_work(where: Place) -> dict[str, str]:
    """Run every check, with time for a loaded machine; what each one said."""
    before = set(multiprocessing.active_children())
    found = list(doctor_check.run_all(where, deadline=100))
    assert [one.status for one in found] == ["ok"] * 6, "\n".join(map(str, found))
    assert set(multiprocessing.active_children()) == before
    return {one.name: one.said for one in found}


@pytest.mark.slow
def test_everything_works_here():
    said = all_work(CPU)
    assert "10 kinds" in said["tensors between neighbours"]
    assert "bit-equal, K=2 against K=1" in said["gradients"]
    assert "all processes ended" in said[doctor_check.FAILING]


@pytest.mark.gpu
def test_everything_works_on_gpus():
    where = doctor_check.place()
    assert where.device == "cuda"
    assert ("share" in where.words) is (torch.cuda.device_count() == 1)
    all_work(where)


@pytest.mark.multigpu
def test_two_stages_have_a_gpu_each():
    all_work(Place(2, "cuda", "2 stages"))


def test_a_hang_is_a_result_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        doctor_check, "WORKING", {"never": (stuck.sleep, lambda found, where: "answered")}
    )
    monkeypatch.setattr(doctor_check, "failure", lambda where, deadline: "told")
    before = set(multiprocessing.active_children())
    start, never, failing = doctor_check.run_all(CPU, deadline=0.5)
    assert (start.status, never.status, failing.status) == ("ok", "failed", "ok")
    assert "no answer within 0.5 s (try " in never.said
    assert set(multiprocessing.active_children()) == before


class Spoil(nn.Module):
    """Changes one tensor and one gradient a little."""

    def forward(self, value: dict[str, Any]) -> dict[str, Any]:
        changed = {"bool": ~value["bool"], "float16": value["float16"] * 1.0}
        if changed["float16"].requires_grad:
            changed["float16"].register_hook(lambda gradient: gradient + 1)
        return value | changed


def test_a_changed_tensor_or_gradient_is_noticed():
    first, last = doctor_probes.Watch(emit=True), doctor_probes.Watch()
    Pipeline([first, Spoil(), last], 1, doctor_probes.M, balance="uniform").train_step(
        torch.zeros(doctor_probes.M, 1), None, doctor_probes.weighed
    )
    assert set(last.wrong) == {"bool"}
    assert set(first.wrong) == {"gradient of float16"}
    with pytest.raises(Broken, match=r"arrived changed: bool at stage 1 \(try "):
        doctor_check.tensors(
            [{"wrong": [], "bytes_per_s": 1.0}, {"wrong": ["bool"], "bytes_per_s": 1.0}], CPU
        )


def test_gradients_are_equal_to_the_bit_on_the_cpu_and_nearly_on_gpus():
    def judged(off: float, where: Place) -> str:
        one, alone = {"a": torch.ones(2)}, {"a": torch.ones(2), "b": torch.full((2,), 4.0)}
        return doctor_check.gradients([(one, alone), ({"b": alone["b"] * (1 + off)}, {})], where)

    assert judged(0, CPU).startswith("bit-equal, K=2 against K=1")
    assert judged(4e-6, GPU).startswith("within 4e-06, not bit-equal")
    for off, where in ((4e-6, CPU), (1e-4, GPU), (float("nan"), GPU)):
        with pytest.raises(Broken, match=r"b: .* off"):
            judged(off, where)


def test_a_meter_that_shows_nothing_is_broken():
    assert doctor_check.memory([[2048, 1024]] * 2, CPU).endswith("2, 1")
    with pytest.raises(Broken, match=r"\[2048, 0\] bytes"):
        doctor_check.memory([[2048, 0]] * 2, CPU)


@pytest.mark.parametrize(
    ("gpus", "cores", "expected"),
    [
        (0, 1, Place(2, "cpu", "2 stages on 1 x CPU core, which they share")),
        (0, 4, Place(4, "cpu", "4 stages on 4 x CPU cores")),
        (0, 64, Place(8, "cpu", "8 stages on 8 x CPU cores")),
        (1, 64, Place(2, "cuda", "2 stages on 1 x NVIDIA H200, which they share")),
        (8, 2, Place(8, "cuda", "8 stages on 8 x NVIDIA H200")),
    ],
)
def test_as_many_stages_as_devices(
    monkeypatch: pytest.MonkeyPatch, gpus: int, cores: int, expected: Place
):
    monkeypatch.setattr(machine, "gpus", lambda: ("NVIDIA H200",) * gpus)
    monkeypatch.setattr(machine, "cores", lambda: cores)
    assert doctor_check.place() == expected


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("skipped", 0), ("failed", 1)])
def test_the_exit_status_says_whether_all_works(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], status: str, code: int
):
    monkeypatch.setattr(
        doctor_check,
        "run_all",
        lambda where: [Check("a", "ok", "yes", 1.0), Check("b", status, "so", 0.5)],
    )
    assert doctor_check.print_checks() == code
    words = {"ok": "b: ok: so", "skipped": "b: skipped(so)", "failed": "b: FAILED: so"}
    assert f"{words[status]} [0.5 s]" in capsys.readouterr().out


def test_torchrun_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="without torchrun"):
        doctor_check.print_checks()
