"""Specs: what is refused in one line, ids that never change, what tells runs apart."""

import json
from typing import Any, get_args

import pytest
from fakes import spec

from repro.gpipe.schedule.kinds import RECOMPUTE_MODES, SCHEDULES
from repro.harness.spec import (
    FitSpec,
    Group,
    Optimizer,
    Recompute,
    RunSpec,
    ScheduleName,
    Training,
    slug,
)
from repro.harness.tasks.optimizers import OPTIMIZERS
from repro.harness.vary import differences

HERE = {"device": "Test CPU", "transport": "gloo", "torch": "2.15.0"}
INTERLEAVED: dict[str, Any] = {"schedule": "interleaved-1f1b", "stages_per_rank": 2}
FIT = {"task": "fit", "memory": 9}
DEEPSPEED = {"library": "deepspeed", "trace": False, "schedule": "1f1b"}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        # Every run.
        ({"K": 0}, ["K = 0", "at least 1"]),
        ({"K": 10**30}, ["K = 1", "at most 1024"]),
        ({"K": 1024, "M": 1024, "N": 2**20}, ["K = 1024 x M = 1024", "product of up to 262144"]),
        ({"M": 9}, ["M = 9", "N = 8", "1 to 8", "larger N"]),
        ({"D": 2, "M": 5}, ["M = 5", "each of D = 2 replicas", "N = 8", "1 to 8"]),
        ({"recompte": "never"}, ["no field 'recompte'", "'never'", "did you mean 'recompute'"]),
        ({"recompute": "nevr"}, ["'always', 'except_last' or 'never'", "did you mean 'never'"]),
        ({"balance": (1, 1, 2)}, ["balance = [1, 1, 2]", "K = 2", "or leave it out"]),
        ({**INTERLEAVED, "balance": (1, 3)}, ["2 entries for K = 2 ranks of 2 stages"]),
        ({"link": {"bytes_per_second": 0}}, ["bytes_per_second=0.0: must be a number"]),
        ({"model": "a\nb"}, ["model = 'a\\nb'", "printed"]),
        ({"model_args": {"a": {1, 2}}}, ["model_args Object of type set is not JSON"]),
        ({"model_args": {"a-b": 1}}, ["no argument has the name 'a-b'", "try L=3"]),
        # Fields and values that only runs of other tasks have.
        ({"task": "fitt"}, ["task = 'fitt': allowed are train, check, fit, ", "mean 'fit'"]),
        ({"memory": 9}, ["memory = 9: a train run has no such field, but a run of simulated or f"]),
        ({**FIT, "control": 2}, ["control = 2: a fit run has no such field, but a run of train"]),
        ({**FIT, "D": 2}, ["D = 2: must be 1", "(of a fit run)"]),
        ({"task": "learn"}, ["the field training is missing; add it (of a learn run)"]),
        ({"task": "calibrate", "fidelity": "emulated"}, ["fidelity = 'emulated': must be 'mea"]),
        ({"fidelity": "counted"}, ["fidelity = 'counted': must be 'measured' or 'emulated'"]),
        ({"task": "traffic", "D": 2}, ["D = 2 with library = 'repro': allowed is 1; set that, or"]),
        ({"fidelity": "simulated", "library": "torch"}, ["library = 'torch': must be 'repro'"]),
        ({"fidelity": "simulated", "memory": 9}, ["memory = 9: it needs a profile"]),
        # What a schedule or a library allows.
        ({"schedule": "interleaved-1f1b"}, ["stages_per_rank=1: must be at least 2"]),
        ({"library": "torch"}, ["trace = True with library = 'torch': allowed is False; set that"]),
        ({"library": "tensor", "trace": False, "K": 1}, ["tensor_parallel = None", "2 to 1024"]),
        ({**DEEPSPEED, "M": 3}, ["N = 8, M = 3", "deepspeed", "one size", "N=6"]),
        ({"task": "traffic", "N": 9, "M": 4}, ["N = 9, M = 4", "multiple of M", "try N=8"]),
        ({"profile": "v100"}, ["profile = 'v100': a train run has no such field, but a"]),
    ],
)
def test_a_wrong_field_is_one_line(changed: dict[str, Any], words: list[str]):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        spec(**{"K": 2, **changed})
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 1000
    for word in words:
        assert word in text


def test_a_run_has_the_fields_of_its_task_and_none_of_others():
    fit = RunSpec(task="fit", model="mlp", K=2, M=1, N=2, memory=9, profile=None)
    assert (fit.memory, fit.balance, fit.fidelity) == (9, "memory", "counted")
    assert fit.training is None
    assert {"profile", "training"}.isdisjoint(fit.plain())
    back = RunSpec(**fit.plain())
    assert type(back) is type(fit) is FitSpec
    with pytest.raises(AttributeError, match="trainin"):
        _ = fit.trainin  # pyright: ignore[reportAttributeAccessIssue]


def test_what_needs_the_model_is_one_line():
    for wrong, words in (
        (spec(K=5), r"^K = 5 stages, but transformer has L = 4 layers here: K may be 1 to 4; "),
        (spec(K=2, balance=(1, 2)), r"^balance = \[1, 2\] adds up to 3 layers, but transformer"),
    ):
        with pytest.raises(ValueError, match=words):
            wrong.check_depth(4)
    with pytest.raises(ValueError, match=r"^the field model is missing"):
        RunSpec(K=1, M=1, N=1)
    with pytest.raises(ValueError, match=r"^runs = \(\): must have at least 1 item"):
        Group(name="g", runs=())


def test_names_are_those_of_the_engine():
    assert get_args(ScheduleName) == tuple(SCHEDULES)
    assert get_args(Recompute) == RECOMPUTE_MODES
    assert set(get_args(Optimizer)) == set(OPTIMIZERS)


def test_ids_are_readable_and_stable():
    """A literal: when this changes, every recorded result is orphaned."""
    one = spec(K=4, M=8, model="timed", model_args={"L": 4})
    back = RunSpec(**json.loads(one.model_dump_json()))
    assert one.run_id(1, HERE) == back.run_id(1, HERE) == "timed-K4-M8-960242"
    assert slug("timm:resnet50") == "timm-resnet50"


def test_what_changes_an_id():
    """Every scientific field; version and engine where a clock times it."""
    usual = spec().run_id(1, HERE)
    changes: list[dict[str, Any]] = [{"N": 9}, {"lr": 0.2}, {"model_args": {"L": 5}}]
    for changed in changes:
        assert spec(**changed).run_id(1, HERE) != usual
    assert spec().run_id(2, HERE) != usual
    simulated = spec(fidelity="simulated")
    for name in HERE:
        elsewhere = {**HERE, name: "other"}
        assert spec().run_id(1, elsewhere) != usual
        assert simulated.run_id(1, elsewhere) == simulated.run_id(1, HERE)
    with pytest.raises(ValueError, match="frozen"):
        spec().K = 3  # pyright: ignore[reportAttributeAccessIssue]


def test_runs_that_differ_by_their_hash_alone_are_told_apart():
    runs = {
        "a": spec(model_args={"L": 4, "d": 64}),
        "b": spec(model_args={"L": 4, "d": 256}, optimizer="adam", lr=0.1),
        "d": spec(model_args={"L": 4}, fidelity="simulated"),
        "e": spec(model="timed"),
        "f": spec(model="mlp", partitioner="minimum-variance", D=2),
        "g": spec(model="mlp", D=2, trace=False),
        "h": spec(model="slow", link={"bytes_per_second": 4e6, "latency": 0.1}),
        "i": spec(model="slow", link={"bytes_per_second": 1e7}),
    }
    found = differences(runs)
    assert found["a"] == "d=64, optimizer=sgd, lr=0.01"
    assert found["b"] == "d=256, optimizer=adam, lr=0.1"
    assert (found["d"], found["e"]) == ("", ""), "alone of their fidelity or model"
    assert found["f"] == "partitioner=minimum-variance"
    assert found["g"] == "", "neither what it lacks nor trace"
    assert (found["h"], found["i"]) == ("link=4 MB/s after 0.1 s", "link=10 MB/s")
    arms = [
        Training(data=("toy:alfa",), recipe={"lr": 1}, arm="A", tuning=t) for t in (False, True)
    ]
    runs = {each.tuning * "tuned": spec(task="learn", training=each) for each in arms}
    assert differences(runs) == {"": "arm=A, seed=0", "tuned": "arm=A, seed=0, tried rate=1"}
