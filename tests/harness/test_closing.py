"""What `repro run` ends with: the table, and what disturbed it."""

import io
from pathlib import Path

import pytest
from crew import Crew, experiment, measure, spec

from repro.harness import contention
from repro.harness.results import load
from repro.harness.spec import Experiment
from repro.report.tables import rounds as rounds_table

POINTS = tuple(spec(K, M) for K in (1, 2) for M in (1, 4))


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests may run beside anything."""
    monkeypatch.setattr(contention.CpuShare, "share", lambda self: 0.0)


def ended(results: Path, of: Experiment, crew: Crew | None = None) -> str:
    """What `repro run` prints."""
    out = io.StringIO()
    measure(results, crew or Crew(), of, out=out)
    return out.getvalue()


def test_a_sweep_ends_with_a_table_that_fits_eighty_columns(tmp_path: Path):
    of = experiment(*POINTS, rounds=5)
    told = ended(tmp_path, of)
    lines = told[told.rindex("\ntransformer, measured, N=8") :].strip().splitlines()
    assert [line.split() for line in lines[1:6]] == [
        ["K", "M", "step", "examples/s", "over", "K=1", "idle", "peak", "rounds"],
        ["1", "1", "2.00", "s", "4.00", "-", "25%", "1.00", "GiB", "5"],
        ["1", "4", "1.25", "s", "6.40", "-", "25%", "1.00", "GiB", "5"],
        ["2", "1", "1.50", "s", "5.33", "1.33x", "[1.33,", "1.33]", "25%", "1.00", "GiB", "5"],
        ["2", "4", "750", "ms", "10.7", "1.67x", "[1.67,", "1.67]", "25%", "1.00", "GiB", "5"],
    ]
    assert max(map(len, lines[1:6])) <= 80
    again = ended(tmp_path, of)  # measures nothing, and ends in the same way
    assert again[again.index("\ntransformer, measured") :].startswith("\n".join(["", *lines]))


def test_rounds_under_load_are_recorded_and_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shares = iter([0.02, 0.0, 0.55, 0.3])  # before the first round, then of three rounds
    monkeypatch.setattr(contention.CpuShare, "share", lambda self: next(shares))
    told = ended(tmp_path, experiment(*POINTS, rounds=3))
    assert told.count("this machine is busy: other processes take ") == 1
    assert told.count("  3, 2 busy") == len(POINTS)
    assert "busy: other processes took more than 10% of the usable cores" in told
    assert rounds_table(load(tmp_path)).groupby("round")["load"].first().tolist() == [
        0.0,
        0.55,
        0.3,
    ]
