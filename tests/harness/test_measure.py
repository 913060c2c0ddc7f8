"""One run in this process: a loss that is not finite fails it, unless that is allowed."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from repro.gpipe import NonFiniteError, StepResult
from repro.harness.job import Job
from repro.harness.spec import RunSpec
from repro.harness.tasks import train
from repro.harness.tasks.run import run

SPEC = RunSpec(model="import:faulty:overflows", K=1, M=2, N=4, warmup=1, steps=2)


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)


def test_our_own_library_says_where_and_what_is_allowed_is_measured():
    with pytest.raises(NonFiniteError, match="step 0: outputs or loss of micro-batch 0 on stage 0"):
        run(Job(SPEC), 0)
    measured = run(Job(SPEC, allow_nonfinite=True), 0)
    assert measured is not None
    # null stands for what JSON cannot hold
    assert measured.record.model_dump()["loss"] == [None, None]


@pytest.mark.parametrize("first", [0, 2])
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
            staleness=lambda: None,
            stashed_bytes=lambda: None,
            close=lambda: None,
        )

    monkeypatch.setattr(train, "make", peer)
    untraced = SPEC.model_copy(update={"library": "torchgpipe", "trace": False})
    with pytest.raises(NonFiniteError, match=r"^the loss is nan; lower the learning rate"):
        run(Job(untraced), 0)
    assert run(Job(untraced, allow_nonfinite=True), 0) is not None
