"""What `repro run` answers: lines for an exhibit, a table for runs of one's own."""

import io
import re
from pathlib import Path

import pytest
from crew import Crew, experiment, measure, metrics, spec

from repro.harness import contention
from repro.harness.frame import runs_frame
from repro.harness.job import Job, Measured, Outcome
from repro.harness.results import load
from repro.harness.sizes import controls_at
from repro.harness.spec import Experiment
from repro.harness.text import TIMES
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


def test_a_sweep_ends_with_a_table(tmp_path: Path):
    of = experiment(*POINTS, rounds=5)
    printed = ended(tmp_path, of)
    answer = printed[printed.rindex("\nexperiment tiny") :]
    lines = [line.split() for line in answer.splitlines()]
    words = "experiment tiny, recorded test-cpu-2c/smoke, D 1, recompute always, "
    assert answer.startswith(f"\n{words}fidelity measured, status done\n")
    assert " ".join(lines[3]) == "run K M N method step throughput over K=1 idle peak rounds"
    assert [line[1:] for line in lines[4:8]] == [
        "1 1 8 single 2.00 s 4.00 examples/s - 25.0 % 1.00 GiB 5".split(),
        "1 4 8 single 1.25 s 6.40 examples/s - 25.0 % 1.00 GiB 5".split(),
        f"2 1 8 gpipe 1.50 s 5.33 examples/s 1.33{TIMES} (1.33 to 1.33) 25.0 % 1.00 GiB 5".split(),
        f"2 4 8 gpipe 750 ms 10.7 examples/s 1.67{TIMES} (1.67 to 1.67) 25.0 % 1.00 GiB 5".split(),
    ]
    assert ended(tmp_path, of).endswith(answer), "a second start, which measures nothing"


def test_an_exhibit_has_a_line_with_its_widest_run(tmp_path: Path):
    of = experiment(*POINTS, spec(2, 4, model="amoebanet-d", model_args={}), rounds=5)
    of = of.model_copy(update={"minutes": {"smoke": 1.0}})
    line = (
        "transformer, measured, K=2, M=4 (of 4 runs): step 750 ms, throughput 10.7 examples/s, "
        f"over K=1 1.67{TIMES} (1.67 to 1.67), idle 25.0 %, peak 1.00 GiB"
    )
    assert re.fullmatch(rf"tiny \(\d s\): {re.escape(line)}", ended(tmp_path, of).splitlines()[-1])
    assert ended(tmp_path, of).splitlines()[1] == f"tiny: {line}", "a second start says the same"


class Fixed(Crew):
    """Records of trainings by seed, and of a check."""

    def measure(self, job: Job, deadline: float) -> Outcome:
        score = {0: None, 1: 12.0, 2: 30.5}[job.spec.seed]
        verdicts = {"gradients": "ok", "batch norm": "wrong"}
        checks = {n: {"verdict": v, "value": None, "evidence": ""} for n, v in verdicts.items()}
        found = {"task": "check", "checks": checks} if job.spec.task == "check" else {}
        changed = found or {"metrics": {"bleu": score}}
        return Outcome("done", measured=Measured(metrics(1.0, job.spec.K, **changed)))


def test_of_trainings_the_range_of_quality_is_shown_and_of_a_check_what_it_found(tmp_path: Path):
    of = experiment(*(spec(1, 1, seed=seed) for seed in (0, 1, 2)))
    of = of.model_copy(update={"minutes": {"smoke": 1.0}})
    printed = ended(tmp_path / "trained", of, Fixed())
    assert printed.rstrip().endswith("quality BLEU 12.0 to 30.5")
    check = spec(2, 4, task="check", trace=False)
    printed = ended(tmp_path / "checked", experiment(check), Fixed())
    assert re.search(r" 1 ok, 1 wrong \(batch norm of transformer-K2-M4-\w+\) ", printed)


def test_controls_have_no_row(tmp_path: Path):
    printed = ended(tmp_path, experiment(*POINTS, *controls_at("laptop", POINTS[2])))
    assert printed[printed.rindex("\nrun ") :].count("transformer-K") == 4
    assert len(runs_frame(load(tmp_path))) == 4


def test_rounds_under_load_are_recorded_and_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shares = iter([0.02, 0.0, 0.55, 0.3])  # before the first round, then of three rounds
    monkeypatch.setattr(contention.CpuShare, "share", lambda self: next(shares))
    printed = ended(tmp_path, experiment(*POINTS, rounds=3))
    assert printed.count("this machine is busy: other processes take ") == 1
    assert printed.count("  3, 2 busy") == len(POINTS)
    assert "busy: other processes took more than 10.0 % of the usable cores" in printed
    loads = rounds_table(load(tmp_path)).groupby("round")["load"].first()
    assert loads.tolist() == [0.0, 0.55, 0.3]
