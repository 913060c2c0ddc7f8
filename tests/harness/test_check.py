"""The doctor's checks: a hang and a wrong answer are results, and no process stays."""

import multiprocessing
import time
from typing import Any

import pytest
import torch
from crew import metrics
from torch import nn

from repro.cli import doctor_check, doctor_models
from repro.cli.doctor_check import Bench, Broken, Place
from repro.gpipe import Pipeline
from repro.harness import machine
from repro.harness.job import Job, Measured, Outcome
from repro.harness.schema import CheckRound, Finding, RoundRecord

CPU, GPU = Place(2, "cpu", "2 stages"), Place(2, "cuda", "2 stages")


class Answers:
    """Gives these outcomes, one for each run that is asked for."""

    def __init__(self, *outcomes: Outcome) -> None:
        self.outcomes = list(outcomes)

    def ready(self) -> None:
        return None

    def measure(self, job: Job, deadline: float) -> Outcome:
        return self.outcomes.pop(0)


def bench(*answers: Outcome | RoundRecord, where: Place = CPU) -> Bench:
    outcomes = [
        answer if isinstance(answer, Outcome) else Outcome("done", measured=Measured(answer))
        for answer in answers
    ]
    return Bench(Answers(*outcomes), where)


def all_work(where: Place) -> dict[str, str]:
    """Run every check, with time for a loaded machine; the text of each."""
    before = set(multiprocessing.active_children())
    results = list(doctor_check.run_all(where, deadline=100))
    assert [result.status for result in results] == ["ok"] * 7, "\n".join(map(str, results))
    assert set(multiprocessing.active_children()) == before
    return {result.name: result.text for result in results}


@pytest.mark.slow
def test_everything_works_here():
    texts = all_work(CPU)
    assert f"{len(doctor_models.expected_tensors())} kinds" in texts["tensors between neighbours"]
    assert "batch norm" in texts["training as the unsplit model"]
    assert "bit-equal, K=2 against K=1" in texts["training as one stage"]
    assert "stage's name" in texts["a stage that fails"]


@pytest.mark.gpu
def test_everything_works_on_gpus():
    where = doctor_check.place()
    assert where.device == "cuda"
    assert ("share" in where.text) is (torch.cuda.device_count() == 1)
    all_work(where)


def test_a_hang_is_a_result_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch):
    checks = {
        "never": lambda bench: str(bench.measure("import:faulty:hangs", {})),
        "next": lambda bench: "went on",
    }
    monkeypatch.setattr(doctor_check, "CHECKS", checks)
    before = set(multiprocessing.active_children())
    never, following = doctor_check.run_all(CPU, deadline=1)
    assert (never.status, following.status) == ("failed", "ok")
    assert "no result within 1 s" in never.text
    assert "(try " in never.text
    assert set(multiprocessing.active_children()) == before


class Spoil(nn.Module):
    """Changes one tensor, or one gradient, a little."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, value: dict[str, Any]) -> dict[str, Any]:
        if self.kind == "bool":
            return value | {"bool": ~value["bool"]}
        changed = value[self.kind] * 1.0
        if changed.requires_grad:
            changed.register_hook(lambda gradient: gradient + 1)
        return value | {self.kind: changed}


@pytest.mark.parametrize(
    ("kind", "noticed"), [("bool", "bool"), ("float16", "gradient of float16")]
)
def test_a_changed_tensor_or_gradient_is_noticed(kind: str, noticed: str):
    model = doctor_models.patterns(2)
    first, last = model.layers
    pipeline = Pipeline([first, Spoil(kind), last], 1, doctor_models.M, balance="uniform")
    inputs, targets = model.batch(doctor_models.M, 0)
    with pytest.raises(Exception, match=rf"arrived changed: {noticed}$"):
        pipeline.train_step(inputs, targets, model.loss)


def test_training_must_be_that_of_the_unsplit_model():
    def record(verdict: str) -> CheckRound:
        found = {"gradients": Finding(verdict=verdict, value=1.0, evidence="off by 1")}
        return CheckRound(checks=found, balance=[1, 1], setup_s=0.1, unit="examples/s", labels={})

    assert doctor_check.unsplit(bench(record("ok"))) == "gradients"
    with pytest.raises(Broken, match=r"gradients: off by 1 \(try another"):
        doctor_check.unsplit(bench(record("wrong")))


def test_losses_are_equal_to_the_bit_on_the_cpu_and_nearly_on_gpus():
    def judged(off: float, where: Place) -> str:
        split, alone = metrics(1, 2, loss=[1.0, 1.0 + off]), metrics(1, 1, loss=[1.0, 1.0])
        return doctor_check.same_losses(bench(split, alone, where=where))

    assert "bit-equal, K=2 against K=1" in judged(0, CPU)
    assert "differ by 4e-06" in judged(4e-6, GPU)
    for off, where in ((4e-6, CPU), (1e-4, GPU)):
        with pytest.raises(Broken, match="losses differ by"):
            judged(off, where)


def test_a_failure_is_reported_soon_and_by_its_stage():
    def reported(stage: int, ago: float) -> str:
        reason = f"stage {stage}: RuntimeError: injected failure at {time.time() - ago:.3f}"
        return doctor_check.failure(bench(Outcome("failed", reason)))

    assert "stage's name" in reported(1, 0)
    with pytest.raises(Broken, match="reported after 9"):
        reported(1, 9)
    with pytest.raises(Broken, match="reported was only: stage 0"):
        reported(0, 0)
    with pytest.raises(Broken, match="reported was only: timeout"):
        doctor_check.failure(bench(Outcome("timeout")))


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
