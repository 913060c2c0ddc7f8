"""The table with which `repro run` ends where the runs are the user's own."""

import io
from pathlib import Path

from fakes import FakeWorkers, experiment, measure, spec

from repro.harness.frame import runs_frame
from repro.harness.results import load
from repro.harness.sizes import controls_at
from repro.harness.spec import Experiment
from repro.harness.text import TIMES

POINTS = tuple(spec(K, M) for K in (1, 2) for M in (1, 4))


def ended(results: Path, of: Experiment, workers: FakeWorkers | None = None) -> str:
    """What `repro run` prints."""
    out = io.StringIO()
    measure(results, workers or FakeWorkers(), of, out=out)
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


def test_controls_have_no_row(tmp_path: Path):
    printed = ended(tmp_path, experiment(*POINTS, *controls_at("laptop", POINTS[2])))
    assert printed[printed.rindex("\nrun ") :].count("transformer-K") == 4
    assert len(runs_frame(load(tmp_path))) == 4
