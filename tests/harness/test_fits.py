"""A fit as a run: counted, and measured by training one size after the other until the next one is
too large."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from fakes import spec

from repro.harness.request import Request, Result, Status
from repro.harness.schema import CutModel, FitRound, Fitted, Tried
from repro.harness.spec import RunSpec
from repro.harness.tasks import fit_search
from repro.harness.tasks.fit_search import Search
from repro.harness.workers import Workers

SIZES = {"d": 32, "H": 64, "heads": 2, "V": 128, "T": 16}
MIB = 2**20


def fit(K: int = 1, **changed: object) -> RunSpec:
    usual = {"M": 8, "task": "fit", "balance": "memory", "memory": MIB, "fidelity": "measured"}
    return spec(K, **{**usual, "model_args": SIZES, **changed})


def cut(size: int) -> CutModel | None:
    if size < 1:
        return None
    values = {"args": {"L": size}, "parameters": size, "fullest": 10 * size, "balance": [size]}
    return CutModel.model_validate(values | {"stages": [{"at": "B0", "total": 10 * size}]})


def fit_round(fit: Fitted, size: int, peaks: list[int] | None = None) -> FitRound:
    return FitRound(fit=fit, balance=[size], peak_bytes=peaks, setup_s=0.1, unit="x/s", labels={})


def count(request: Request) -> FitRound:
    """Ten bytes a size."""
    assert request.spec.fidelity == "counted"
    largest = (request.spec.memory or 0) // 10
    return fit_round(Fitted(largest=cut(largest), next=cut(largest + 1)), largest)


@dataclass
class Fake:
    """Trains sizes up to `real`."""

    real: int

    def measure(self, request: Request, deadline: float) -> Result | Status:
        size = request.spec.model_args["L"]
        assert request.balance == (size,)
        if size > self.real:
            reason = "stage 0: MemoryError: 60 bytes of tensors at once, 55 are allowed"
            return Status("oom", reason)
        values = {"args": {"L": size}, "parameters": 0, "status": "done", "reason": ""}
        peaks = {"peak_bytes": [10 * size], "counted_bytes": [], "allocator_bytes": None}
        trained = Tried.model_validate(values | peaks)
        record = fit_round(Fitted(largest=None, next=None, tried=[trained]), size, [10 * size])
        return Result(record)


def answer(found: Result | Status) -> FitRound:
    assert isinstance(found, Result), found
    assert isinstance(found.record, FitRound)
    return found.record


@pytest.mark.parametrize(
    ("real", "tried"),
    [(5, [5, 6]), (7, [5, 6, 7, 8]), (3, [5, 4, 3]), (0, [5, 4, 3, 2, 1])],
    ids="as up down none".split(),
)
def test_the_largest_that_trains_is_found_from_what_was_counted(real, tried, monkeypatch):
    monkeypatch.setattr(fit_search, "counted", count)
    said: list[str] = []
    search = Search(Fake(real).measure, Request(fit(memory=55)), 1.0, said.append)
    record = answer(search.found())
    assert [size.args["L"] for size in record.fit.tried] == tried
    assert record.fit.largest == cut(real)
    assert record.fit.next == cut(real + 1)
    assert record.fit.counted == cut(5)
    assert record.peak_bytes == ([10 * real] if real else None)
    assert len(said) == len(tried)


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ("failed", "no such layer"),
        # That the machine is out of memory is no result.
        ("oom", "died (SIGKILL, probably out of memory)"),
        ("oom", "MemoryError: no 9 bytes of shared memory"),
    ],
)
def test_a_size_that_fails_otherwise_ends_the_search(status: str, reason: str, monkeypatch):
    monkeypatch.setattr(fit_search, "counted", count)

    class Broken(Fake):
        def measure(self, request: Request, deadline: float) -> Status:
            return Status(status, reason)

    search = Search(Broken(9).measure, Request(fit(memory=55)), 1.0, lambda _: None)
    assert search.found() == (status, reason)


@pytest.mark.filterwarnings("default")  # torch's own, about its process groups
def test_stages_train_within_their_memory_and_not_beyond(tmp_path: Path):
    with Workers(tmp_path / "logs") as workers:
        asked = Request(fit(2, optimizer="rmsprop", transport="shm"))
        record = answer(Search(workers.measure, asked, 60, lambda _: None).found())
    largest, above = record.fit.largest, record.fit.next
    assert largest is not None
    assert above is not None
    assert record.peak_bytes is not None
    assert max(record.peak_bytes) <= MIB
    assert record.fit.counted == largest
    assert record.peak_bytes == pytest.approx(record.fit.tried[0].counted_bytes, rel=0.01)
    assert above.args["L"] == largest.args["L"] + 1
    over = record.fit.tried[-1]
    assert (over.status, over.args) == ("oom", above.args)
    assert over.reason.startswith("stage ")
    assert f"{MIB:,} are allowed" in over.reason
    assert not (tmp_path / "logs").exists(), "that a size does not fit is no trouble"
