"""A measured fit as a run: one size, trained by the stages into which it is counted to be cut."""

from pathlib import Path
from typing import Any

import pytest
from fakes import spec

from repro.harness.request import Request, Result, Status
from repro.harness.schema import FitRound
from repro.harness.spec import RunSpec
from repro.harness.tasks.fit import trained
from repro.harness.workers import Workers

SIZES = {"L": 6, "d": 32, "H": 64, "heads": 2, "V": 128, "T": 16}
MIB = 2**20


def fit(memory: int) -> Request:
    fields: Any = {"M": 8, "task": "fit", "balance": "memory", "fidelity": "measured"}
    of: RunSpec = spec(2, model_args=SIZES, memory=memory, transport="shm", **fields)
    return Request(of)


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ("failed", "no such layer"),
        # That the machine is out of memory is no result.
        ("oom", "died (SIGKILL, probably out of memory)"),
        ("oom", "MemoryError: no 9 bytes of shared memory"),
    ],
)
def test_a_size_that_fails_otherwise_has_no_result(status: str, reason: str):
    found = trained(lambda *_: Status(status, reason), fit(MIB), 1.0)
    assert found == Status(status, reason)


@pytest.mark.filterwarnings("default")  # torch's own, about its process groups
def test_stages_train_within_their_memory_and_not_beyond(tmp_path: Path):
    def record(workers: Workers, memory: int) -> FitRound:
        found = trained(workers.measure, fit(memory), 60)
        assert isinstance(found, Result), found
        assert isinstance(found.record, FitRound)
        return found.record

    with Workers(tmp_path / "logs") as workers:
        inside = record(workers, MIB)
        assert inside.peak_bytes is not None
        needed = round(max(inside.peak_bytes))
        beyond = record(workers, needed - 1)
    assert needed <= MIB
    (tried,) = inside.fit.tried
    assert inside.peak_bytes == pytest.approx(tried.counted_bytes, rel=0.01)
    assert inside.fit.largest is not None
    assert inside.fit.largest.args == tried.args == SIZES
    (over,) = beyond.fit.tried
    assert (over.status, beyond.fit.largest, beyond.peak_bytes) == ("oom", None, None)
    assert over.reason.startswith("stage ")
    assert f"{needed - 1:,} are allowed" in over.reason
    assert not (tmp_path / "logs").exists(), "that a size does not fit is no trouble"
