"""Real workers: what goes wrong in one run is one line and does not touch the next."""

import multiprocessing
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from repro.gpipe import NonFiniteError
from repro.harness.crew import Crew
from repro.harness.job import Job, Outcome
from repro.harness.schema import TrainRound
from repro.harness.spec import RunSpec, Training
from repro.harness.tasks.run import run
from repro.harness.tasks.train import going_on
from repro.methods.named import fields_of

pytestmark = pytest.mark.filterwarnings("default")  # torch's own, about its process groups
SMALL = {"d": 16, "H": 32, "heads": 2, "T": 8}


def job(model: str, device: str = "cpu", **changed: Any) -> Job:
    fields: dict[str, Any] = {"K": 2, "M": 2, "N": 4, "warmup": 0, "steps": 1, "balance": "uniform"}
    return Job(RunSpec(model=model, **(fields | changed)), device=device)


GOOD = job("timed", model_args={"L": 4, "forward_s": 0.001, "backward_s": 0.001})


def alive(pids: list[int | None]) -> list[int | None]:
    files = {pid: Path(f"/proc/{pid}/stat") for pid in pids}
    return [pid for pid, file in files.items() if file.exists() and " Z " not in file.read_text()]


def trained(outcome: Outcome) -> TrainRound:
    assert outcome.measured is not None, outcome.reason
    assert isinstance(outcome.measured.record, TrainRound)
    return outcome.measured.record


BROKEN = "RuntimeError: layer two is broken"


@pytest.mark.parametrize(
    ("model", "fields", "status", "reason"),
    [
        ("raises", {}, "failed", f"stage 1, F0 of step 0: {BROKEN} .in layers.1., a _Goes"),
        ("raises", {"library": "torch", "trace": False}, "failed", f"stage 1, in torch: {BROKEN}"),
        ("overflows", {}, "failed", "step 0: outputs or loss of micro-batch 0 on stage 1 are inf"),
        ("dies", {}, "failed", "stage 1, .* died .SIGKILL, probably out of memory"),
        ("allocates", {}, "oom", "stage 1, .* can't allocate memory"),
        ("hangs", {}, "timeout", "no result within 3 s .stage 0, .*; stage 1, F0 of step 0 when"),
    ],
)
def test_a_run_that_fails_is_named_and_the_next_one_is_measured(
    shared: Crew, model: str, fields: dict[str, Any], status: str, reason: str
):
    assert shared.measure(GOOD, 60).status == "done"
    before = [child.pid for child in multiprocessing.active_children()]
    outcome = shared.measure(job(f"import:faulty:{model}", **fields), 3 if model == "hangs" else 60)
    assert outcome.status == status
    assert re.match(reason, outcome.reason), outcome.reason
    assert alive(before) == []
    if not fields and model == "raises":
        printed = "".join(path.read_text() for path in Path(outcome.log).rglob("*.log"))
        assert printed.count("in _raise\n") == 1
    assert shared.measure(GOOD, 60).status == "done"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory):
    before = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME")}
    with Crew(tmp_path_factory.mktemp("crew") / "logs") as crew:
        yield crew
    assert before == {name: os.environ.get(name) for name in before}


def test_what_is_measured(shared: Crew):
    good = shared.measure(GOOD, 60)
    record = trained(good)
    assert (len(record.step_s), record.balance) == (1, [2, 2])
    assert len(record.peak_bytes or ()) == 2
    assert good.measured is not None
    assert good.measured.timeline is not None
    assert {span.stage for span in good.measured.timeline.spans} == {0, 1}

    plain = replace(GOOD, spec=GOOD.spec.model_copy(update={"trace": False}))
    outcome = shared.measure(plain, 60)
    untraced = trained(outcome)
    assert outcome.measured is not None
    assert outcome.measured.timeline is None
    assert (untraced.breakdown, untraced.bubble_idle_over_total) == ({}, [None])
    # M+K-1 micro-batches' F, R and B in two layers, at least
    assert untraced.step_s[0] >= 3 * 4 * 0.001


@pytest.mark.alone
def test_runs_are_measured_step_against_step(shared: Crew):
    """Of one, two and three stages, with a peer; a slowed run is slower.

    The shortest of the steps counts, since other programs can only make a step longer.
    """
    common: dict[str, Any] = {"M": 3, "N": 3, "steps": 4, "warmup": 1, "trace": False}
    common |= {"model_args": {"L": 3, "forward_s": 0.01, "backward_s": 0.02}}
    timed = [job("timed", K=K, **common) for K in (1, 2, 3)]
    timed += [job("timed", library="torch", **common), job("timed", control="slowed", **common)]
    found = shared.measure_all(tuple(timed), 60, fresh=True)
    steps = [trained(found[number]).step_s for number in range(5)]
    assert all(len(each) == 4 for each in steps)
    one, ours, three, peer, slowed = map(min, steps)
    assert all(0.2 < each < 0.35 for each in (ours, peer))
    assert slowed > 1.01 * ours
    # 9 waits of F, R and B each: K=1 does all of them, K=3 a third
    assert one > 1.5 * three


def test_a_run_leaves_when_its_ratios_are_decided(shared: Crew):
    """K=3 takes a third of the waits of K=1; the same run again does not differ."""
    common: dict[str, Any] = {"M": 3, "N": 3, "steps": 12, "warmup": 1, "trace": False}
    common |= {"model_args": {"L": 3, "forward_s": 0.005, "backward_s": 0.01}}
    base, wide, again = (job("timed", K=K, **common) for K in (1, 3, 1))
    jobs = base, replace(wide, bases=(0,)), replace(again, bases=(0,))
    found = shared.measure_all(jobs, 60, fresh=True)
    blocks = [len(trained(found[number]).step_s) for number in range(3)]
    assert blocks[1] < blocks[0] == blocks[2] == 12


BASE, RUN = job("timed", steps=9), job("timed", steps=9, M=4)
CONTROL = job("timed", steps=9, M=4, control="again")
CLEAR, NEAR = [1.0, 1.01, 0.99, 1.0, 1.02], [2.0, 2.01, 1.99, 2.0, 2.02]


@pytest.mark.parametrize(
    ("jobs", "seconds", "left"),
    [
        # A run and its base; a control goes on with the others, and keeps nothing going.
        ([BASE, replace(RUN, bases=(0,))], [NEAR, CLEAR], []),
        ([BASE, replace(RUN, bases=(0,))], [NEAR, NEAR], [0, 1]),
        ([BASE, replace(CONTROL, bases=(0,))], [NEAR, CLEAR], [0, 1]),
        ([BASE, replace(RUN, bases=(0,)), replace(CONTROL, bases=(1,))], [NEAR, CLEAR, CLEAR], []),
        # What is decided leaves, but for a base of what is not.
        ([BASE, *[replace(RUN, bases=(0,))] * 2], [NEAR, CLEAR, NEAR], [0, 2]),
        (
            [BASE, replace(RUN, bases=(0,)), replace(RUN, bases=(1,))],
            [NEAR, CLEAR, CLEAR],
            [0, 1, 2],
        ),
    ],
)
def test_which_runs_go_on(jobs: list[Job], seconds: list[list[float]], left: list[int]):
    assert going_on(jobs, range(len(jobs)), dict(enumerate(seconds))) == left


def test_trainings_side_by_side_are_those_alone(shared: Crew):
    recipe = {"optimizer": "sgd", "lr": 0.01}
    fields: dict[str, Any] = {"K": 1, "M": 1, "N": 8, "task": "learn", "trace": False}
    fields |= {"training": Training(data=("digits",), recipe=recipe)}
    sizes: dict[str, Any] = {"L": 3, "D": 8, "image": 16, "num_classes": 10}
    jobs = [job("amoebanet-b", model_args=sizes, seed=seed, **fields) for seed in (0, 1)]
    wrong = job("amoebanet-b", model_args=sizes | {"num_classes": 5}, **fields)

    def digests(*outcomes: Outcome) -> list[str]:
        return [each.measured.record.digest for each in outcomes]  # type: ignore[union-attr]

    found = shared.measure_all(tuple(jobs), 60)
    assert digests(*found.values()) == digests(*(shared.measure(each, 60) for each in jobs))
    assert len({*digests(*found.values())}) == 2
    failed = shared.measure_all((jobs[0], wrong), 60)
    assert [(n, each.status) for n, each in failed.items()] == [(1, "failed")]


def test_a_loss_that_is_not_finite_fails_a_peer_too(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent)
    ours = job("import:faulty:overflows", K=1, steps=2, warmup=1)
    changed = {"library": "pipedream", "trace": False}
    peer = replace(ours, spec=ours.spec.model_copy(update=changed))
    with pytest.raises(NonFiniteError, match=r"^the loss is inf; lower the learning rate"):
        run((peer,), 0)


@pytest.mark.parametrize("method", ["data", "tensor"])
def test_a_method_that_uses_two_of_three_workers(shared: Crew, method: str):
    """The third must make the same process groups."""
    three = job("timed", K=3, M=1, model_args={"L": 3, "forward_s": 0.001, "backward_s": 0.001})
    shared.measure(three, 60)
    assert shared.count == 3
    model: dict[str, Any] = {
        "model": "transformer",
        "model_args": {"L": 2, "V": 64, "dropout": 0.0, **SMALL},
        "N": 8,
    }
    (single,) = run((Job(RunSpec(K=1, M=2, **model)),), 0)
    assert isinstance(single.record, TrainRound)
    spec = RunSpec(**model, **fields_of(method, 2), M=2, trace=False)
    record = trained(shared.measure(Job(spec), 120))
    assert record.loss == pytest.approx(single.record.loss, rel=1e-4)
    assert record.sent_bytes is not None
    assert [set(sent) >= {"all-reduce"} for sent in record.sent_bytes] == [True, True]


@pytest.mark.parametrize(
    ("gpus", "there", "asked", "wanted"),
    [
        (0, 0, job("timed"), 2),
        (0, 4, job("timed"), 4),
        (4, 4, job("timed", "cuda"), 4),
        (2, 2, job("timed", "cuda", K=4, N=16), 4),
        (2, 4, job("timed", "cuda"), 2),
        (0, 4, job("timed", library="deepspeed", schedule="1f1b", trace=False), 2),
        (0, 2, job("timed", K=4, N=16), 4),
    ],
)
def test_a_run_gets_the_workers_that_it_needs(gpus: int, there: int, asked: Job, wanted: int):
    """More workers than GPUs have no NCCL; a library may take all processes as its own."""
    crew = Crew(gpus=gpus)
    crew.count = there
    assert crew._wanted((asked,)) == wanted
