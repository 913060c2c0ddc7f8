"""What `repro run` ends with: the table, which point is called the fastest, and exhibits."""

import io
import re
from pathlib import Path

import pytest
from crew import Crew, experiment, measure, metrics, spec

from repro.harness import contention
from repro.harness.frame import runs_frame
from repro.harness.job import Job, Measured, Outcome
from repro.harness.results import load
from repro.harness.spec import Experiment, controls
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
    assert "fastest: K=2, M=4, 1.67x [1.67, 1.67] over the next, K=1, M=4" in told
    again = ended(tmp_path, of)  # measures nothing, and ends in the same way
    assert again[again.index("\ntransformer, measured") :].startswith("\n".join(["", *lines]))


def test_a_bleu_that_is_not_defined_is_marked(tmp_path: Path):
    class Short(Crew):
        def measure(self, job: Job, deadline: float) -> Outcome:
            return Outcome("done", measured=Measured(metrics(1.0, 1, metrics={"bleu": None})))

    told = ended(tmp_path, experiment(spec(1, 1)), Short())
    assert "BLEU nan: not defined, as no reference" in told


def test_controls_stand_below_the_table_and_not_in_it(tmp_path: Path):
    told = ended(tmp_path, experiment(*POINTS, *controls(POINTS[2])))
    assert "control, a run beside itself: step 1.00x [1.00, 1.00]" in told
    assert "control, with 3% of its step slept away: step 1.00x [1.00, 1.00]" in told
    rows = told[told.rindex("\nK ") :].partition("\n  ")[0].strip().splitlines()
    assert len(rows) == 1 + 4
    results = load(tmp_path)
    assert len(runs_frame(results)) == 4


def test_a_check_ends_with_what_it_found(tmp_path: Path):
    class Checking(Crew):
        def measure(self, job: Job, deadline: float) -> Outcome:
            found = {"gradients": "ok", "batch norm": "wrong"}
            checks = {n: {"verdict": v, "value": None, "evidence": ""} for n, v in found.items()}
            record = metrics(1.0, 2, task="check", checks=checks)
            return Outcome("done", measured=Measured(record))

    told = ended(tmp_path, experiment(spec(2, 4, task="check", trace=False)), Checking())
    assert told.rstrip().endswith(": gradients: ok, batch norm: wrong")


def test_it_says_how_many_more_blocks_a_narrower_interval_takes(tmp_path: Path):
    class Noisy(Crew):
        def measure(self, job: Job, deadline: float) -> Outcome:
            noise = 0.04 * (len(self.jobs) % 5)
            record = metrics(1 / job.spec.K + noise, job.spec.K)
            self.jobs.append(job)
            return Outcome("done", measured=Measured(record))

    told = ended(tmp_path, experiment(spec(1), spec(2), rounds=4), Noisy())
    found = re.search(r"±(.*)%; ±(.*)% takes about (\d+) more blocks: --rounds (\d+)", told)
    assert found, told
    width, goal, blocks, rounds = map(float, found.groups())
    assert rounds == 4 + blocks / spec().steps
    assert rounds >= 4 * (width / goal) ** 2 - 0.1


def test_no_fastest_is_named_that_the_rounds_do_not_show(tmp_path: Path):
    """The second run is faster in every other round."""

    class Noisy(Crew):
        def measure(self, job: Job, deadline: float) -> Outcome:
            odd = len(self.jobs) // 2 % 2
            changed = job.spec.model_copy(update={"M": 4 if odd ^ (job.spec.M == 4) else 1})
            return super().measure(Job(changed), deadline)

    told = ended(tmp_path, experiment(spec(2, 1), spec(2, 4), rounds=6), Noisy())
    assert "examples/s" in told
    assert "fastest" not in told


def test_rounds_under_load_are_recorded_and_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shares = iter([0.02, 0.0, 0.55, 0.3])  # before the first round, then of three rounds
    monkeypatch.setattr(contention.CpuShare, "share", lambda self: next(shares))
    told = ended(tmp_path, experiment(*POINTS, rounds=3))
    assert told.count("this machine is busy: other processes take ") == 1
    assert told.count("  3, 2 busy") == len(POINTS)
    assert "busy: other processes took more than 10% of the usable cores" in told
    loads = rounds_table(load(tmp_path)).groupby("round")["load"].first()
    assert loads.tolist() == [0.0, 0.55, 0.3]
