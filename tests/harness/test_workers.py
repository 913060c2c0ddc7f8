"""Real processes: what goes wrong in one run is told in one line and does not touch the next."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from repro.harness.measure import Job
from repro.harness.spec import RunSpec
from repro.harness.workers import Workers, _execute

pytestmark = pytest.mark.filterwarnings("default")  # torch's own, about its process groups


def job(model: str, **args: object) -> Job:
    return Job(RunSpec(model=model, model_args=args, K=2, M=2, N=4, warmup=0, steps=1, balance="uniform"))


GOOD = job("timed", L=4, forward_s=0.001, backward_s=0.001)

OVERFLOW = "step 0: layer 1 (_Overflows) on stage 1 made inf or nan in the forward of micro-batch 0"


def _changed(job: Job, fields: dict[str, object]) -> Job:
    return replace(job, spec=job.spec.model_copy(update=fields))


def alive(pids: list[int]) -> list[int]:
    return [
        pid for pid in pids if Path(f"/proc/{pid}/stat").exists() and " Z " not in Path(f"/proc/{pid}/stat").read_text()
    ]


def test_runs_survive_each_other(tmp_path: Path):
    before = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    with Workers(3, tmp_path / "logs") as crew:
        raised = crew.measure(job("import:faulty:raises"), 60)
        assert (raised.status, raised.reason) == ("failed", "stage 1: RuntimeError: layer two is broken")
        printed = "".join(path.read_text() for path in Path(raised.log).rglob("stderr.log"))
        assert "Traceback" in printed

        good = crew.measure(GOOD, 60)
        assert good.status == "done"
        line = good.metrics
        assert (len(line["step_s"]), line["balance"], len(line["peak_bytes"])) == (1, [2, 2], 2)
        assert {span["stage"] for span in good.timeline} == {0, 1}
        assert json.dumps(line)

        untraced = crew.measure(_changed(GOOD, {"trace": False}), 60)
        assert (untraced.status, untraced.timeline, untraced.metrics["breakdown"]) == ("done", [], {})
        assert untraced.metrics["bubble_idle_over_total"] == [None]
        assert untraced.metrics["step_s"][0] >= 3 * 4 * 0.001  # M+K-1 micro-batches' F, R and B in two layers, at least

        peer = {"library": "torch", "trace": False}
        theirs = crew.measure(_changed(GOOD, peer), 60)
        assert (theirs.status, theirs.metrics["balance"], theirs.metrics["peak_bytes"]) == ("done", [2, 2], None)
        assert theirs.metrics["loss"] == pytest.approx(good.metrics["loss"], rel=1e-5)
        raised = crew.measure(_changed(job("import:faulty:raises"), peer), 60)
        assert (raised.status, raised.reason) == ("failed", "stage 1: RuntimeError: layer two is broken")

        infinite = crew.measure(job("import:faulty:overflows"), 60)
        assert (infinite.status, infinite.reason.split(";")[0]) == ("failed", OVERFLOW)

        crew.ready()
        assert crew._context is not None
        pids = list(crew._context.pids().values())
        silent = crew.measure(job("import:faulty:hangs"), 1)
        assert (silent.status, silent.reason) == ("timeout", "no result within 1 s")
        assert alive(pids) == []
    assert before == {name: os.environ.get(name) for name in before}


def test_a_stage_that_dies_is_named_rather_than_its_neighbours(tmp_path: Path):
    with Workers(2, tmp_path / "logs") as crew:
        died = crew.measure(job("import:faulty:dies"), 60)
        assert (died.status, died.reason) == ("failed", "stage 1 died (SIGKILL, probably out of memory)")


def test_out_of_memory_is_no_failure_and_a_rank_without_a_stage_idles():
    one = Job(RunSpec(model="import:faulty:out_of_memory", K=1, M=1, N=1))
    outcome = _execute(one, 0)
    assert outcome is not None
    assert (outcome.status, outcome.reason) == ("oom", "stage 0: torch.OutOfMemoryError: CUDA out of memory")
    assert _execute(one, 1) is None
