"""Real processes: what goes wrong in one run is told in one line and does not touch the next."""

import multiprocessing
import os
from dataclasses import replace
from pathlib import Path

import pytest

from repro.harness import runner
from repro.harness.job import Job
from repro.harness.machine import Machine
from repro.harness.plan import make
from repro.harness.pools import Local
from repro.harness.schema import TrainRound
from repro.harness.spec import Experiment, Group, RunSpec
from repro.harness.tasks.run import run
from repro.harness.workers import Crews, Outcome, Workers
from repro.methods.named import fields_of

pytestmark = pytest.mark.filterwarnings("default")  # torch's own, about its process groups


def job(model: str, **args: object) -> Job:
    return Job(
        RunSpec(model=model, model_args=args, K=2, M=2, N=4, warmup=0, steps=1, balance="uniform")
    )


GOOD = job("timed", L=4, forward_s=0.001, backward_s=0.001)

OVERFLOW = "step 0: outputs or loss of micro-batch 0 on stage 1 are inf or nan"


def _changed(job: Job, fields: dict[str, object]) -> Job:
    return replace(job, spec=job.spec.model_copy(update=fields))


def alive(pids: list[int | None]) -> list[int | None]:
    return [
        pid
        for pid in pids
        if Path(f"/proc/{pid}/stat").exists() and " Z " not in Path(f"/proc/{pid}/stat").read_text()
    ]


def trained(outcome: Outcome) -> TrainRound:
    assert outcome.measured is not None, outcome.reason
    assert isinstance(outcome.measured.record, TrainRound)
    return outcome.measured.record


def test_runs_survive_each_other(tmp_path: Path):
    before = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME")}
    team = Local(3, tmp_path / "logs")
    with Workers(team) as crew:
        raised = crew.measure(job("import:faulty:raises"), 60)
        assert (raised.status, raised.reason) == (
            "failed",
            "stage 1, F0 of step 0: RuntimeError: layer two is broken",
        )
        printed = "".join(path.read_text() for path in Path(raised.log).rglob("*.log"))
        assert printed.count("in _raise\n") == 1

        good = crew.measure(GOOD, 60)
        assert good.status == "done"
        record = trained(good)
        assert (len(record.step_s), record.balance) == (1, [2, 2])
        assert len(record.peak_bytes or ()) == 2
        assert good.measured is not None
        assert good.measured.timeline is not None
        assert {span.stage for span in good.measured.timeline.spans} == {0, 1}

        untraced = crew.measure(_changed(GOOD, {"trace": False}), 60)
        assert untraced.measured is not None
        assert untraced.measured.timeline is None
        assert trained(untraced).breakdown == {}
        assert trained(untraced).bubble_idle_over_total == [None]
        # M+K-1 micro-batches' F, R and B in two layers, at least
        assert trained(untraced).step_s[0] >= 3 * 4 * 0.001

        peer = {"library": "torch", "trace": False}
        theirs = trained(crew.measure(_changed(GOOD, peer), 60))
        assert (theirs.balance, theirs.peak_bytes) == ([2, 2], None)
        assert theirs.loss == pytest.approx(record.loss, rel=1e-5)
        raised = crew.measure(_changed(job("import:faulty:raises"), peer), 60)
        assert (raised.status, raised.reason) == (
            "failed",
            "stage 1, in torch: RuntimeError: layer two is broken",
        )

        stale = trained(
            crew.measure(_changed(GOOD, {**peer, "library": "pipedream", "steps": 2}), 60)
        )
        assert (stale.staleness, record.staleness) == ([1, 0], None)
        assert (stale.stashed_bytes, record.stashed_bytes) == ([8, 0], None)  # two weights a stage
        assert len(stale.peak_bytes or ()) == 2

        infinite = crew.measure(job("import:faulty:overflows"), 60)
        assert (infinite.status, infinite.reason.split(";")[0]) == ("failed", OVERFLOW)

        crew.ready()
        pids = [child.pid for child in multiprocessing.active_children()]
        silent = crew.measure(job("import:faulty:hangs"), 25)
        assert silent.status == "timeout"
        assert silent.reason.startswith("no result within 25 s (stage 0, ")
        assert silent.reason.endswith("stage 1, F0 of step 0 when last heard of)")
        assert alive(pids) == []
    assert before == {name: os.environ.get(name) for name in before}


# Method of four devices or fewer -> what each of its processes sends, besides messages.
SENDS: dict[str, set[str]] = {
    "data": {"all-reduce", "broadcast"},
    "fully-sharded": {"all-reduce", "all-gather", "reduce-scatter"},
    "tensor": {"all-reduce"},
    "gpipe-x-data": {"all-reduce"},
    "gpipe-x-zero1": {"all-reduce", "broadcast"},
    "gpipe-x-tensor": {"all-reduce"},
}


@pytest.mark.slow
def test_every_method_is_measured_by_the_same_workers(tmp_path: Path):
    """Some use two of the four processes; the others must make the same process groups."""
    common = {
        "model": "transformer",
        "model_args": {"L": 2, "d": 16, "H": 32, "heads": 2, "V": 64, "T": 8, "dropout": 0.0},
        "M": 2,
        "N": 8,
        "lr": 0.1,
        "warmup": 1,
        "steps": 2,
        "optimizer": "adam",
    }
    single = run(Job(RunSpec(K=1, **common)), 0)
    assert single is not None
    assert isinstance(single.record, TrainRound)
    with Workers(Local(4, tmp_path / "logs")) as crew:
        for name, kinds in SENDS.items():
            fields = fields_of(name, 4 if "-x-" in name else 2)
            # Undivided layers are timed by one process.
            balance = "time" if name == "gpipe-x-tensor" else "uniform"
            spec = RunSpec(
                trace="library" not in fields, **{**common, **fields, "balance": balance}
            )
            record = trained(crew.measure(Job(spec), 120))
            assert record.loss == pytest.approx(single.record.loss, rel=1e-4), name
            assert record.sent_bytes is not None
            assert len(record.sent_bytes) == spec.devices, name
            for sent in record.sent_bytes:
                assert sent.keys() - {"activations", "gradients"} == kinds, name
            assert len(record.peak_bytes or ()) == spec.K, name


def test_stages_are_cut_by_counted_flops_as_the_cost_model_cuts(tmp_path: Path):
    """One layer has most of the FLOPs, so that the three rules cut it differently from a count."""
    with Workers(Local(2, tmp_path / "logs")) as crew:
        for partitioner in (None, "minimum-variance", "cumulative-share"):
            spec = RunSpec(
                model="transformer",
                model_args={"L": 5, "d": 16, "H": 32, "heads": 2, "V": 512, "T": 8},
                K=2,
                M=2,
                N=4,
                warmup=0,
                steps=1,
                balance="flops",
                partitioner=partitioner,
            )
            simulated = spec.model_copy(update={"fidelity": "simulated", "profile": "v100"})
            predicted = run(Job(simulated), 0)
            assert predicted is not None
            measured = trained(crew.measure(Job(spec), 60))
            assert measured.balance == predicted.record.balance
            assert measured.balance[0] > measured.balance[1], "the softmax has most of the FLOPs"


@pytest.mark.parametrize(
    ("model", "status", "reason"),
    [
        ("dies", "failed", "died (SIGKILL, probably out of memory)"),
        ("allocates", "oom", "can't allocate memory"),
    ],
)
def test_a_stage_that_ends_is_named_rather_than_its_neighbours(
    tmp_path: Path, model: str, status: str, reason: str
):
    with Workers(Local(2, tmp_path / "logs")) as crew:
        outcome = crew.measure(job(f"import:faulty:{model}"), 60)
        assert outcome.status == status
        assert outcome.reason.startswith("stage 1, ")
        assert reason in outcome.reason


def test_runs_with_a_gpu_for_each_stage_get_workers_of_their_own(tmp_path, monkeypatch):
    """More workers than GPUs have no NCCL; two pools of them never run at once."""
    devices = Machine("cuda", "NVIDIA H200", 2, "nccl", "2.15.0")
    cuda = replace(GOOD, device="cuda")
    wide = replace(cuda, spec=GOOD.spec.model_copy(update={"K": 4, "fidelity": "emulated"}))
    of_spec = (Group(name="timed", runs=(cuda.spec, wide.spec)),)
    plan = make(
        Experiment(name="tiny", title="", question="?", groups=of_spec), "node", devices, tmp_path
    )
    crew = runner.workers([plan], tmp_path)
    calls = noted(monkeypatch)
    for each in (cuda, cuda, wide, replace(cuda, device="cpu"), cuda):
        crew.measure(each, 60)
    assert calls == ["2: K=2", "2: K=2", "end 2", "4: K=4", "4: K=2", "end 4", "2: K=2"]
    # Where all stages have a GPU, or all share the only one, all have the same workers.
    for count in (1, 4):
        plan = replace(plan, machine=replace(devices, count=count))
        crew, calls[:] = runner.workers([plan], tmp_path), []
        for each in (cuda, wide):
            crew.measure(each, 60)
        assert calls == ["4: K=2", "4: K=4"]


def test_a_library_that_takes_all_processes_gets_as_many_as_it_has_stages(monkeypatch):
    spec = GOOD.spec.model_copy(update={"library": "deepspeed"})
    wide = replace(GOOD, spec=GOOD.spec.model_copy(update={"K": 4}))
    crew = Crews(lambda count: Workers(Local(count, Path("logs"))), widest=4, gpus=0)
    calls = noted(monkeypatch)
    for each in (wide, replace(GOOD, spec=spec), GOOD, wide):
        crew.measure(each, 60)
    # Those that are there measure on.
    assert calls == ["4: K=4", "end 4", "2: K=2", "2: K=2", "end 2", "4: K=4"]


def noted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is asked of workers from now on, after how many there are."""
    calls: list[str] = []

    def measure(crew: Workers, job: Job, _deadline: float) -> None:
        calls.append(f"{crew.pool.count}: K={job.spec.K}")

    monkeypatch.setattr(Workers, "measure", measure)
    monkeypatch.setattr(Workers, "rest", lambda crew: calls.append(f"end {crew.pool.count}"))
    return calls
