"""Real workers: what goes wrong in one run is one line and does not touch the next."""

import multiprocessing
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from repro.gpipe import NonFiniteError
from repro.harness.request import Request, Result, Status
from repro.harness.schema import TrainRound
from repro.harness.spec import RunSpec, Training
from repro.harness.tasks.run import run
from repro.harness.tasks.train import going_on
from repro.harness.workers import Workers
from repro.methods.named import fields_of

pytestmark = pytest.mark.filterwarnings("default")  # torch's own, about its process groups
SMALL = {"d": 16, "H": 32, "heads": 2, "T": 8}


def a_run(model: str, device: str = "cpu", **changed: Any) -> Request:
    fields: dict[str, Any] = {"K": 2, "M": 2, "N": 4, "warmup": 0, "steps": 1, "balance": "uniform"}
    return Request(RunSpec(model=model, **(fields | changed)), device=device)


GOOD = a_run("timed", model_args={"L": 4, "forward_s": 0.001, "backward_s": 0.001})


def alive(pids: list[int | None]) -> list[int | None]:
    files = {pid: Path(f"/proc/{pid}/stat") for pid in pids}
    return [pid for pid, file in files.items() if file.exists() and " Z " not in file.read_text()]


def trained(found: Result | Status) -> TrainRound:
    assert isinstance(found, Result), found
    assert isinstance(found.record, TrainRound)
    return found.record


BROKEN = "RuntimeError: layer two is broken"


@pytest.mark.parametrize(
    ("model", "fields", "status", "reason"),
    [
        ("raises", {}, "failed", f"stage 1, F0 of step 0: {BROKEN} .in layers.1., a _Goes"),
        # Each rank runs all layers on the meta device, so either may be the first.
        ("raises", {"library": "torch", "trace": False}, "failed", f"stage ., in torch: {BROKEN}"),
        ("takes_tokens", {"warmup": 1}, "failed", "stage 0, .*; for tokens return a `repro.models"),
        ("overflows", {}, "failed", "step 0: outputs or loss of micro-batch 0 on stage 1 are inf"),
        ("dies", {}, "failed", "stage 1, .* died .SIGKILL, probably out of memory"),
        ("allocates", {}, "oom", "stage 1, .* can't allocate memory"),
        ("hangs", {}, "timeout", "no result within 3 s .stage 0, .*; stage 1, F0 of step 0 when"),
    ],
)
def test_a_run_that_fails_is_named_and_the_next_one_is_measured(
    shared: Workers, model: str, fields: dict[str, Any], status: str, reason: str
):
    trained(shared.measure(GOOD, 60))
    before = [child.pid for child in multiprocessing.active_children()]
    seconds = 3 if model == "hangs" else 60
    found = shared.measure(a_run(f"import:faulty:{model}", **fields), seconds)
    assert isinstance(found, Status)
    assert found.word == status
    assert re.match(reason, found.reason), found.reason
    assert alive(before) == []
    if not fields and model == "raises":
        assert shared.logs is not None
        printed = "".join(path.read_text() for path in shared.logs.rglob("*.log"))
        assert printed.count("in _raise\n") == 1
    trained(shared.measure(GOOD, 60))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory):
    before = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME")}
    with Workers(tmp_path_factory.mktemp("workers") / "logs") as workers:
        yield workers
    assert before == {name: os.environ.get(name) for name in before}


def test_what_is_measured(shared: Workers):
    good = shared.measure(GOOD, 60)
    assert isinstance(good, Result)
    record = trained(good)
    assert (len(record.step_s), record.balance) == (1, [2, 2])
    assert len(record.peak_bytes or ()) == 2
    assert good.timeline is not None
    assert {span.stage for span in good.timeline.spans} == {0, 1}

    plain = replace(GOOD, spec=GOOD.spec.model_copy(update={"trace": False}))
    found = shared.measure(plain, 60)
    assert isinstance(found, Result)
    assert found.timeline is None
    untraced = trained(found)
    assert (untraced.breakdown, untraced.bubble_idle_over_total) == ({}, [None])
    # M+K-1 micro-batches' F, R and B in two layers, at least
    assert untraced.step_s[0] >= 3 * 4 * 0.001


@pytest.mark.alone
def test_runs_are_measured_step_against_step(shared: Workers):
    """Of one, two and three stages, with a peer.

    The shortest of the steps counts, since other programs can only make a step longer.
    """
    common: dict[str, Any] = {"M": 3, "N": 3, "steps": 4, "warmup": 1, "trace": False}
    common |= {"model_args": {"L": 3, "forward_s": 0.01, "backward_s": 0.02}}
    timed = [a_run("timed", K=K, **common) for K in (1, 2, 3)]
    timed.append(a_run("timed", library="torch", **common))
    found = shared.measure_all(tuple(timed), 60, fresh=True)
    steps = [trained(found[number]).step_s for number in range(4)]
    assert all(len(each) == 4 for each in steps)
    one, ours, three, peer = map(min, steps)
    assert all(0.2 < each < 0.35 for each in (ours, peer))
    # 9 waits of F, R and B each: K=1 does all of them, K=3 a third
    assert one > 1.5 * three


def test_a_run_leaves_when_its_ratios_are_decided(shared: Workers):
    """K=3 takes a third of the waits of K=1; the same run again does not differ."""
    common: dict[str, Any] = {"M": 3, "N": 3, "steps": 12, "warmup": 1, "trace": False}
    common |= {"model_args": {"L": 3, "forward_s": 0.005, "backward_s": 0.01}}
    base, wide, again = (a_run("timed", K=K, **common) for K in (1, 3, 1))
    requests = base, replace(wide, bases=(0,)), replace(again, bases=(0,))
    found = shared.measure_all(requests, 60, fresh=True)
    blocks = [len(trained(found[number]).step_s) for number in range(3)]
    assert blocks[1] < blocks[0] == blocks[2] == 12


BASE, RUN = a_run("timed", steps=9), a_run("timed", steps=9, M=4)
CONTROL = a_run("timed", steps=9, M=4, control="again")
CLEAR, NEAR = [1.0, 1.01, 0.99, 1.0, 1.02], [2.0, 2.01, 1.99, 2.0, 2.02]


@pytest.mark.parametrize(
    ("requests", "seconds", "left"),
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
def test_which_runs_go_on(requests: list[Request], seconds: list[list[float]], left: list[int]):
    assert going_on(requests, range(len(requests)), dict(enumerate(seconds))) == left


def test_trainings_side_by_side_are_those_alone(shared: Workers):
    recipe = {"optimizer": "sgd", "lr": 0.01}
    fields: dict[str, Any] = {"K": 1, "M": 1, "N": 8, "task": "learn", "trace": False}
    fields |= {"training": Training(data=("digits",), recipe=recipe)}
    sizes: dict[str, Any] = {"L": 3, "D": 8, "image": 16, "num_classes": 10}
    requests = [a_run("amoebanet-b", model_args=sizes, seed=seed, **fields) for seed in (0, 1)]
    wrong = a_run("amoebanet-b", model_args=sizes | {"num_classes": 5}, **fields)

    def digests(*found: Any) -> list[str]:
        return [each.record.digest for each in found]

    found = shared.measure_all(tuple(requests), 60)
    assert digests(*found.values()) == digests(*(shared.measure(each, 60) for each in requests))
    assert len({*digests(*found.values())}) == 2
    failed = shared.measure_all((requests[0], wrong), 60)
    assert [(n, isinstance(each, Status)) for n, each in failed.items()] == [(1, True)]


def test_a_loss_that_is_not_finite_fails_a_peer_too(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent)
    ours = a_run("import:faulty:overflows", K=1, steps=2, warmup=1)
    changed = {"library": "pipedream", "trace": False}
    peer = replace(ours, spec=ours.spec.model_copy(update=changed))
    with pytest.raises(NonFiniteError, match=r"^the loss is inf; lower the learning rate"):
        run((peer,), 0)


@pytest.mark.parametrize("method", ["data", "tensor"])
def test_a_method_that_uses_two_of_three_workers(shared: Workers, method: str):
    """The third must make the same process groups."""
    three = a_run("timed", K=3, M=1, model_args={"L": 3, "forward_s": 0.001, "backward_s": 0.001})
    shared.measure(three, 60)
    assert shared.count == 3
    model: dict[str, Any] = {
        "model": "transformer",
        "model_args": {"L": 2, "V": 64, "dropout": 0.0, **SMALL},
        "N": 8,
    }
    (single,) = run((Request(RunSpec(K=1, M=2, **model)),), 0)
    assert isinstance(single.record, TrainRound)
    spec = RunSpec(**model, **fields_of(method, 2), M=2, trace=False)
    record = trained(shared.measure(Request(spec), 120))
    assert record.loss == pytest.approx(single.record.loss, rel=1e-4)
    assert record.sent_bytes is not None
    assert [set(sent) >= {"all-reduce"} for sent in record.sent_bytes] == [True, True]


@pytest.mark.parametrize(
    ("gpus", "there", "asked", "wanted"),
    [
        (0, 0, a_run("timed"), 2),
        (0, 4, a_run("timed"), 4),
        (4, 4, a_run("timed", "cuda"), 4),
        (2, 2, a_run("timed", "cuda", K=4, N=16), 4),
        (2, 4, a_run("timed", "cuda"), 2),
        (0, 4, a_run("timed", library="deepspeed", schedule="1f1b", trace=False), 2),
        (0, 2, a_run("timed", K=4, N=16), 4),
    ],
)
def test_a_run_gets_the_workers_that_it_needs(gpus: int, there: int, asked: Request, wanted: int):
    """More workers than GPUs have no NCCL; a library may take all processes as its own."""
    workers = Workers(gpus=gpus)
    workers.count = there
    assert workers._wanted((asked,)) == wanted
