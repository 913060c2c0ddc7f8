"""One run in this process: a loss that is not finite fails it, unless that is allowed."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from repro.gpipe import NonFiniteError, StepResult
from repro.harness.job import Job
from repro.harness.schema import TrainRound
from repro.harness.spec import RunSpec
from repro.harness.tasks import train
from repro.harness.tasks.run import run


def job(**how: Any) -> Job:
    return Job(RunSpec(model="import:faulty:overflows", K=1, M=2, N=4, warmup=1, steps=2), **how)


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)


def test_our_own_library_says_where():
    with pytest.raises(
        NonFiniteError,
        match="step 0: outputs or loss of micro-batch 0 on stage 0 are inf or nan",
    ):
        run(job(), 0)


def test_what_is_allowed_is_measured():
    measured = run(job(allow_nonfinite=True), 0)
    assert measured is not None
    assert isinstance(measured.record, TrainRound)
    assert measured.record.loss == [None, None], "which stands for what JSON cannot hold"


@pytest.mark.parametrize("first", [0, 1, 2])
def test_a_peer_is_asked_for_its_loss(monkeypatch: pytest.MonkeyPatch, first: int):
    """In the warm-up step or in a timed one."""
    losses = [math.nan if n >= first else 1.0 for n in range(3)]

    def peer(_library: str, _setup: object) -> Any:
        steps = iter(losses)
        return SimpleNamespace(
            balance=(2,),
            train_step=lambda *_, **__: StepResult(next(steps), 0.0, 1.0),
            gather=lambda value: [value],
            peak_bytes=lambda *_: None,
            sent_bytes=lambda *_: None,
            close=lambda: None,
        )

    monkeypatch.setattr(train, "make", peer)
    asked = job()
    untraced = asked.spec.model_copy(update={"library": "torchgpipe", "trace": False})
    with pytest.raises(
        NonFiniteError,
        match=r"^the loss is nan; lower the learning rate; --allow-nonfinite records it$",
    ):
        run(Job(untraced), 0)
    assert run(Job(untraced, allow_nonfinite=True), 0) is not None
