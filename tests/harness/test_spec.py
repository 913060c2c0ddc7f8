import json
from typing import Any, get_args

import pytest
from crew import spec

from repro.gpipe.schedule.kinds import CHECKPOINTS, SCHEDULES
from repro.harness.spec import (
    Checkpoint,
    Group,
    Optimizer,
    RunSpec,
    ScheduleName,
    Training,
    slug,
)
from repro.harness.tasks.optimizers import OPTIMIZERS
from repro.harness.vary import differences

INTERLEAVED = {
    "library": "torch-interleaved",
    "trace": False,
    "schedule": "interleaved-1f1b",
    "stages_per_rank": 2,
}
HERE = {"device": "Test CPU", "transport": "gloo", "torch": "2.15.0"}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"K": 0}, ["K = 0", "1 or more"]),
        ({"M": 9}, ["M = 9", "N = 8", "1 to 8", "larger N"]),
        ({"D": 9}, ["D = 9 replicas", "N = 8", "D may be 1 to 8", "larger N"]),
        ({"K": "two"}, ["K = 'two'", "valid integer"]),
        ({"chekpoint": "never"}, ["no field 'chekpoint'", "'never'", "did you mean 'checkpoint'"]),
        (
            {"checkpoint": "nevr"},
            ["checkpoint = 'nevr'", "always, except_last, never", "did you mean 'never'"],
        ),
        ({"schedule": "gpip"}, ["schedule = 'gpip'", "1f1b", "did you mean 'gpipe'"]),
        ({"schedule": "zb-h1"}, ["checkpoint = 'always'", "schedule = 'zb-h1'", "set checkpoint"]),
        (
            {"schedule": "zb-h1", "checkpoint": "never"},
            ["schedule = 'zb-h1' with fidelity = 'measured'", "set fidelity='simulated'"],
        ),
        (
            {"schedule": "zb-h1", "checkpoint": "never", "fidelity": "emulated"},
            ["schedule = 'zb-h1' with fidelity = 'emulated'", "not executed yet"],
        ),
        (
            {"schedule": "interleaved-1f1b"},
            ["stages_per_rank = None with schedule = 'interleaved-1f1b'", "stages_per_rank=2"],
        ),
        ({"stages_per_rank": 2}, ["stages_per_rank = 2 with schedule = 'gpipe'", "=None"]),
        (
            {"K": 2, "schedule": "interleaved-1f1b", "stages_per_rank": 2, "balance": (1, 3)},
            ["balance = [1, 3] has 2 entries for K = 2 ranks of 2 stages each"],
        ),
        (
            {
                "task": "fit",
                "fidelity": "counted",
                "memory": 2**30,
                "balance": "memory",
                "schedule": "interleaved-1f1b",
                "stages_per_rank": 2,
            },
            ["stages_per_rank = 2 with task = 'fit'", "one stage a rank"],
        ),
        ({"K": 2, "balance": (1, 1, 2)}, ["balance = [1, 1, 2]", "K = 2", "balance='time'"]),
        ({"balance": "tim"}, ["balance = 'tim'", "uniform", "did you mean 'time'"]),
        ({"optimizer": "sgdd"}, ["optimizer = 'sgdd'", "adam"]),
        (
            {"optimizer": "rmsprop-momentun"},
            ["optimizer = 'rmsprop-momentun'", "did you mean 'rmsprop-momentum'"],
        ),
        ({"lr": 0}, ["lr = 0", "more than 0"]),
        ({"model": ""}, ["model = ''"]),
        ({"D": 2, "M": 5}, ["M = 5", "each of D = 2 replicas", "N = 8", "1 to 4"]),
        ({"library": "torhc"}, ["library = 'torhc'", "did you mean 'torch'"]),
        ({"library": "torch"}, ["trace = True", "library = 'torch'", "allowed is False"]),
        (
            {"library": "torch", "trace": False, "checkpoint": "except_last"},
            ["'always' or 'never'"],
        ),
        (
            {"library": "torch-1f1b", "trace": False},
            ["schedule = 'gpipe'", "library = 'torch-1f1b'", "allowed is '1f1b'"],
        ),
        (
            {"library": "torch-1f1b", "trace": False, "schedule": "1f1b", "K": 4, "M": 2},
            ["M = 2, K = 4", "set M=4"],
        ),
        (
            {"library": "deepspeed", "trace": False, "schedule": "1f1b", "K": 2, "M": 3, "N": 8},
            ["M = 3, N = 8 with library = 'deepspeed'", "one size", "N=6"],
        ),
        (
            {**INTERLEAVED, "K": 2, "M": 7},
            ["M = 7, K = 2", "multiple of M // K", "set M=6"],
        ),
        ({**INTERLEAVED, "K": 1}, ["K = 1 with library = 'torch-interleaved'", "K of 2"]),
        ({"library": "pipedream", "trace": False, "D": 2}, ["D = 2", "allowed is 1"]),
        (
            {"library": "pipedream", "trace": False, "schedule": "1f1b"},
            ["schedule = '1f1b'", "library = 'pipedream'", "allowed is 'gpipe'"],
        ),
        (
            {"task": "check", "N": 9, "M": 4},
            ["N = 9", "task = 'check'", "multiple of M = 4", "try N=8"],
        ),
        ({"transport": "tcp"}, ["transport = 'tcp'", "auto, shm, gloo"]),
        ({"K": 10**30}, ["K = 1000000", "at most 1024; change K"]),
        ({"K": 10**9000}, ["K = an int too large to show", "at most 1024"]),
        ({"K": True}, ["K = True", "valid integer"]),
        ({"K": 2.0}, ["K = 2.0", "valid integer"]),
        ({"K": "2"}, ["K = '2'", "valid integer"]),
        ({"K": 1024, "M": 1024, "N": 2**20}, ["K = 1024 x M = 1024", "product of up to 262144"]),
        ({"N": 2**21}, ["N = 2097152", "at most 1048576"]),
        ({"D": 1025}, ["D = 1025", "at most 1024"]),
        ({"steps": 10**9}, ["steps = 1000000000", "at most 1048576"]),
        ({"warmup": -1}, ["warmup = -1", "0 or more"]),
        ({"seed": 2**63}, ["seed = 9223372036854775808"]),
        ({"balance": [10**30]}, ["balance = [1000000", "at most 1048576"]),
        ({"lr": float("nan")}, ["lr = nan"]),
        ({"lr": float("inf")}, ["lr = inf"]),
        ({"lr": "fast" * 10**6}, ["lr = 'fastfast", "valid number"]),
        ({"trace": "yes"}, ["trace = 'yes'", "valid boolean"]),
        ({"model": "x" * 10**6}, ["model = 'xxx", "at most 200 characters"]),
        ({"model": "a\nb"}, ["model = 'a\\nb'", "printed"]),
        ({"model_args": {"L": 10**30}}, ["model_args holds an integer of more than 64 bits"]),
        ({"model_args": {"a": [float("inf")]}}, ["model_args holds inf"]),
        ({"model_args": {"a": {1, 2}}}, ["model_args holds a set"]),
        ({"model_args": {"a": {1: 2}}}, ["model_args the key 1 is no text"]),
        ({"model_args": {"a-b": 1}}, ["model_args has the name 'a-b'", "try L=3"]),
        ({"model_args": {"a": "x" * 10**6}}, ["model_args holds 1000008 characters"]),
        ({"model_args": {"a": [0] * 10**5}}, ["model_args holds 200007 characters"]),
        ({"self": 1}, ["no field 'self'"]),
        ({"x" * 10**6: 1}, ["no field 'xxx"]),
    ],
)
def test_a_wrong_field_is_one_line(changed: dict[str, Any], words: list[str]):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        spec(**changed)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 1000
    for word in words:
        assert word in text


def test_the_bounds_themselves_are_allowed():
    most = spec(1024, 256, N=2**20, steps=2**20, warmup=0, seed=2**63 - 1, lr=1, model="x" * 200)
    assert len(most.run_id(1, HERE)) <= 255  # of a folder's name
    assert spec(model_args={"a": [None, True, -1, 0.5, "x", {"b": []}]}).model_args["a"][-1] == {
        "b": []
    }


def test_what_needs_the_model_is_one_line():
    with pytest.raises(
        ValueError, match=r"^K = 5 stages, but transformer has L = 4 layers here: K may be 1 to 4; "
    ):
        spec(K=5).fit(4)
    with pytest.raises(
        ValueError, match=r"^balance = \[1, 2\] adds up to 3 layers, but transformer has L = 4"
    ):
        spec(K=2, balance=(1, 2)).fit(4)
    spec(K=4).fit(4)


def test_a_missing_field_and_an_empty_group_are_one_line():
    with pytest.raises(ValueError, match=r"^the field model is missing"):
        RunSpec(K=1, M=1, N=1)  # pyright: ignore[reportCallIssue]
    with pytest.raises(ValueError, match=r"^runs = \(\): allowed is at least 1 entry"):
        Group(name="g", runs=())
    with pytest.raises(ValueError, match=r"K = 1, M = 1 twice"):
        Group(name="g", runs=(spec(), spec()))


def test_names_are_those_of_the_engine():
    assert get_args(ScheduleName) == tuple(SCHEDULES)
    assert get_args(Checkpoint) == CHECKPOINTS
    assert set(get_args(Optimizer)) == set(OPTIMIZERS)


def test_ids_are_readable_and_stable():
    """A literal: when this changes, every recorded result is orphaned."""
    assert (
        spec(K=4, M=8, model="timed", model_args={"L": 4}).run_id(1, HERE) == "timed-K4-M8-960242"
    )
    assert slug("timm:resnet50") == "timm-resnet50"


def test_ids_survive_a_round_trip_and_the_order_of_arguments():
    one = spec(model_args={"L": 4, "elements": 8})
    two = spec(model_args={"elements": 8, "L": 4})
    back = RunSpec(**json.loads(one.model_dump_json()))
    assert one.run_id(1, HERE) == two.run_id(1, HERE) == back.run_id(1, HERE)


@pytest.mark.parametrize(
    "changed",
    [
        {"N": 9},
        {"seed": 1},
        {"checkpoint": "never"},
        {"lr": 0.2},
        {"model_args": {"L": 5}},
        {"steps": 4},
        {"D": 2},
        {"trace": False},
        {"task": "check"},
    ],
)
def test_every_scientific_field_changes_the_id(changed: dict[str, Any]):
    assert spec(**changed).run_id(1, HERE) != spec().run_id(1, HERE)


def test_version_and_engine_change_the_id_of_timed_runs_alone():
    assert spec().run_id(2, HERE) != spec().run_id(1, HERE)
    for name in HERE:
        elsewhere = {**HERE, name: "other"}
        assert spec().run_id(1, elsewhere) != spec().run_id(1, HERE)
        counted = spec(fidelity="simulated")
        assert counted.run_id(1, elsewhere) == counted.run_id(1, HERE)


def test_runs_that_differ_by_their_hash_alone_are_told_apart():
    wide = {"L": 4, "d": 256, "layers": list(range(100))}
    runs = {
        "a": spec(model_args={"L": 4, "d": 64}),
        "b": spec(model_args={"L": 4, "d": 256}, optimizer="adam", lr=0.1),
        "c": spec(model_args=wide),
        "d": spec(model_args={"L": 4}, fidelity="simulated"),
        "e": spec(model="timed"),
    }
    found = differences(runs)
    assert found["a"] == "d=64, optimizer=sgd, lr=0.01"
    assert found["b"] == "d=256, optimizer=adam, lr=0.1"
    assert found["c"].startswith("d=256, layers=[0, 1, 2,")
    assert len(found["c"]) < 90
    assert (found["d"], found["e"]) == ("", ""), "alone of their fidelity or model"


def test_trainings_are_told_apart_by_their_data():
    recipe = {"lr": 0.1}
    of = {
        name: spec(task="learn", training=Training(data=data, recipe=recipe))
        for name, data in (("a", ("toy:alfa",)), ("b", ("toy:alfa", "toy:india")))
    }
    assert differences(of) == {"a": "data=toy:alfa", "b": "data=toy:alfa, toy:india"}
    assert differences({"a": of["a"]}) == {"a": ""}


def test_specs_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        spec().K = 3  # pyright: ignore[reportAttributeAccessIssue]


def test_trainings_on_other_data_share_their_pretraining():
    def fine_tuned(classes: tuple[int, int], **pretraining: Any) -> RunSpec:
        before = {"data": ("imagenet",), "recipe": {"lr": 1.0}, "steps": 40, **pretraining}
        data = {"data": ("digits",), "data_args": {"classes": classes}, "recipe": {"lr": 0.1}}
        return RunSpec(
            model="amoebanet-b",
            model_args={"L": 3, "num_classes": 1 + classes[1] - classes[0]},
            K=2,
            M=2,
            N=8,
            task="learn",
            training=Training(**data, pretraining=Training(**before)),
        )

    before = fine_tuned((5, 9)).pretraining_run()
    assert before is not None
    assert before == fine_tuned((5, 7)).pretraining_run()
    assert (before.steps, before.model_args) == (40, {"L": 3, "num_classes": 1000})
    some = fine_tuned((5, 9), data=("digits",), data_args={"classes": [0, 3]}).pretraining_run()
    assert some is not None
    assert some.model_args["num_classes"] == 4
    assert spec().pretraining_run() is None
