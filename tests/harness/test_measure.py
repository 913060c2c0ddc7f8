"""One run in this process: a loss that is not finite fails it, unless that is allowed."""

from pathlib import Path

import pytest

from repro.gpipe import NonFiniteError
from repro.harness.job import Job
from repro.harness.spec import RunSpec
from repro.harness.tasks.run import run

SPEC = RunSpec(model="import:faulty:overflows", K=1, M=2, N=4, warmup=1, steps=2)


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)


def test_our_own_library_says_where_and_what_is_allowed_is_measured():
    with pytest.raises(NonFiniteError, match="step 0: outputs or loss of micro-batch 0 on stage 0"):
        run((Job(SPEC),), 0)
    (measured,) = run((Job(SPEC, allow_nonfinite=True),), 0)
    # null stands for what JSON cannot hold
    assert measured.record.model_dump()["loss"] == [None, None]


def test_a_peer_is_asked_for_its_loss():
    peer = {"library": "pipedream", "trace": False, "balance": "uniform"}
    untraced = SPEC.model_copy(update=peer)
    with pytest.raises(NonFiniteError, match=r"^the loss is inf; lower the learning rate"):
        run((Job(untraced),), 0)
    assert run((Job(untraced, allow_nonfinite=True),), 0)
