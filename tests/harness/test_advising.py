"""`repro advise`: its plans have the steps and the memory of `repro simulate`, ranked; mistakes."""

import dataclasses
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from crew import Crew

from repro.cli.main import main
from repro.cli.plan import PlanOptions, choose
from repro.costs.device import load as load_device
from repro.gpipe.partition.layer_costs import LinkSpeed
from repro.gpipe.schedule.timeline import Span, Timeline
from repro.harness import machine, runner
from repro.harness.advise import CHECKPOINTS, Plan, Question, _ranked
from repro.harness.machine import Machine
from repro.harness.predict import Roofline, predict
from repro.harness.results import load
from repro.harness.schema import TrainRound
from repro.harness.spec import PLAIN, RunSpec
from repro.harness.tasks.simulate import simulated
from repro.models import build
from repro.simulate.step import all_reduce_seconds, exposed_seconds

ARGS = {"L": 6, "d": 1024, "H": 4096, "heads": 8, "V": 64, "T": 128}
SIZES = ["--model-args", *(f"{name}={value}" for name, value in ARGS.items())]
ON = ["advise", "transformer", *SIZES, "--device", "v100", "--devices", "2", "--batch", "8"]
OWN = ["--calibration", "own.json", "--devices", "2"]
HERE = Machine("cpu", "Test CPU", 2, "shm", "2.9")


def question(args: dict[str, Any], N: int) -> Question:
    """Two V100 of a gigabyte each."""
    source = Roofline(load_device("v100"), build("transformer", **args))
    return Question(source, args, devices=2, memory=10**9, N=N)


@pytest.fixture
def two_cores(monkeypatch) -> None:
    monkeypatch.setattr(machine, "detect", lambda _scale: HERE)


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main([*ON, *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_its_plans_are_ranked_and_fit(capsys):
    found = answer(capsys, "--memory", "1GB", "--devices", "4", "--batch", "4", "--top", "30")
    steps = [plan["step_s"] for plan in found["plans"]]
    assert steps[0] <= 1.005 * min(steps)
    beyond = [step for step in steps if step > 1.005 * min(steps)]
    assert beyond == sorted(steps)[-len(beyond) :]
    for plan in found["plans"]:
        assert max(plan["peak_bytes"]) <= 10**9
        assert plan["K"] * plan["D"] in (1, 2, 4)
        assert 4 % (plan["M"] * plan["D"]) == 0
        assert sum(plan["balance"]) == 8
        assert plan["step_low_s"] < plan["step_s"] < plan["step_high_s"]
        assert bool(plan["why_not"]) == (plan is not found["plans"][0])
    combinations = [(p["schedule"], p["K"], p["D"], p["checkpoint"]) for p in found["plans"]]
    assert len(set(combinations)) == len(combinations)


def test_of_plans_as_fast_as_each_other_one_on_fewer_devices_comes_first():
    spec = RunSpec(model="transformer", K=2, M=1, N=8)
    many = Plan(spec, 0.999, {}, 0.0, peak_bytes=(1, 1))
    few = Plan(spec.model_copy(update={"K": 1}), 1.0, {}, 0.0, peak_bytes=(9,))
    assert _ranked([many, few]) == [few, many]
    assert _ranked([many, slower := dataclasses.replace(few, step_s=1.01)]) == [many, slower]


def test_steps_and_memory_are_those_of_a_simulated_run_and_none_is_faster():
    plans = question(ARGS, 8).answer(top=30).plans
    assert {plan.spec.checkpoint for plan in plans} == set(CHECKPOINTS)
    for plan in (plan for plan in plans if plan.spec.D == 1):
        changed = {"fidelity": "simulated", "profile": "v100", "balance": "time"}
        record = simulated(plan.spec.model_copy(update=changed), "cpu").record
        assert isinstance(record, TrainRound)
        assert plan.step_s == pytest.approx(record.step_s[0])
        assert list(plan.peak_bytes) == record.peak_bytes
        assert plan.share("bubble") == pytest.approx(record.breakdown["bubble"])
    spec = plans[0].spec.model_copy(update={"balance": "time", "D": 1, "stages_per_rank": None})
    for K, M in ((1, 8), (2, 2), (2, 8)):
        fields = {"K": K, "M": M, "schedule": "gpipe", "checkpoint": "never"}
        other = predict(spec.model_copy(update=fields), question(ARGS, 8).source)
        assert plans[0].step_s <= 1.005 * other.step_s


def test_a_plan_that_does_not_fit_is_named(capsys):
    free = answer(capsys)["plans"][0]
    limit = round(0.95 * max(free["peak_bytes"]))
    found = answer(capsys, "--memory", f"{limit}B")
    assert found["plans"][0]["step_s"] > free["step_s"]
    assert all(max(plan["peak_bytes"]) <= limit for plan in found["plans"])
    assert found["too_large"]
    for large in (*found["too_large"], *found["do_not_fit"]):
        assert max(large["peak_bytes"]) > limit
        assert re.fullmatch(r"does not fit: .* of .* on (stage|rank) 0", large["why_not"])
    assert [(plan["K"], plan["D"]) for plan in found["do_not_fit"]] == [(1, 2), (1, 1)]


def test_where_nothing_fits_the_least_memory_is_told_and_is_enough(capsys):
    assert main([*ON, "--memory", "1MB"]) == 2
    error = capsys.readouterr().err
    needed, unit = error.partition("takes ")[2].split()[:2]
    assert answer(capsys, "--memory", f"{float(needed) + 0.01}{unit}")["plans"]
    assert main([*ON, "--memory", f"{float(needed) - 0.01}{unit}"]) == 2


def test_a_memory_that_the_cut_by_time_exceeds_is_met_by_another_cut():
    """The last stage is the softmax, and little else."""
    wide = {**ARGS, "d": 32, "H": 64, "V": 4096, "T": 16}
    asked = question(wide, 2)
    cuts: dict[Any, set[Any]] = {}
    while True:
        try:
            plans = asked.answer(top=30).plans
        except ValueError:
            break
        for plan in plans:
            key = plan.spec.schedule, plan.spec.K, plan.spec.M, plan.spec.checkpoint
            cuts.setdefault(key, set()).add(plan.spec.balance)
        memory = round(0.9 * min(asked.memory, max(max(plan.peak_bytes) for plan in plans)))
        asked = dataclasses.replace(asked, memory=memory)
    assert max(map(len, cuts.values())) > 1


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([*ON[1:], "--devices", "0"], "--devices 0: allowed is 1 to 64"),
        ([*ON[1:], "--device", "here"], "`repro calibrate` measures this machine and writes it"),
        (["transformer", *SIZES, "--device", "v100"], "--devices: say how many there are"),
        (["timed", "--devices", "2"], "nothing can be advised; name a model that computes"),
        ([*OWN, "--batch", "16"], "--memory: a calibration does not know it; try --memory 8GB"),
        ([*OWN, "--batch", "13", "--memory", "10GB"], "timed for micro-batches of 2 to 8 examples"),
    ],
)
def test_a_mistake_is_one_line(words, text, monkeypatch, tmp_path: Path, refused):
    monkeypatch.chdir(tmp_path)
    timed_layers(Path("own.json"))
    assert text in refused(["advise", *words])


def timed_layers(path: Path) -> Path:
    """A calibration of ARGS on two processes: together everything takes twice what it does alone.

    A micro-batch of n examples takes 1 + n ms in each layer, forward.
    """
    layers = ARGS["L"] + 2

    def tables(factor: float) -> dict[str, Any]:
        rows = [[1e-3 * factor * (1 + n)] * layers for n in (2, 4, 8)]
        backward = [[2 * seconds for seconds in row] for row in rows]
        return {"forward": rows, "recompute": rows, "backward": backward}

    about = {"model": "transformer", "model_args": ARGS, "K": 2, "device": f"{HERE.kind}, K=2"}
    sent = dict.fromkeys(("activations", "gradients"), [0.0] * (layers - 1))
    times = tables(2) | sent | {"alone": tables(1), "sizes": [2, 4, 8], "update": [0.0] * layers}
    times["link"] = {"latency": 0.0, "bytes_per_second": None, "overlap": True}
    about |= {"date": "2026-01-01", "unit": "x/s", "calibration": times}
    path.write_text(json.dumps(about))
    return path


def test_plans_by_timed_layers(tmp_path: Path, capsys):
    path = str(timed_layers(tmp_path / "own.json"))
    words = ["advise", "--calibration", path, "--devices", "2", "--batch", "16"]
    assert main([*words, "--memory", "10GB", "--top", "50", "--json"]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    plans = json.loads(output.out)["plans"]
    assert {(plan["K"], plan["D"]) for plan in plans} == {(1, 1), (1, 2), (2, 1)}
    for plan in (plan for plan in plans if plan["K"] == 1):
        examples = 16 // plan["D"] // plan["M"]
        assert 2 <= examples <= 8, "other sizes were not timed"
        if plan["checkpoint"] == "never":
            # 8 layers, F and B; two replicas always compute together: twice as long.
            forward_s = plan["D"] * 1e-3 * (1 + examples)
            assert plan["step_s"] == pytest.approx(plan["M"] * 8 * 3 * forward_s)


@pytest.mark.usefixtures("two_cores")
def test_this_machine_is_the_one_that_was_measured(tmp_path: Path, monkeypatch, capsys):
    """Its profile, and its number of devices."""
    monkeypatch.chdir(tmp_path)
    folder = Path("results") / HERE.slug
    folder.mkdir(parents=True)
    title = f"{HERE.kind}, K=2 processes at once"
    measured = load_device("v100").model_copy(update={"name": HERE.slug, "title": title})
    measured.save(folder / "device.json")
    words = ["transformer", *SIZES, "--device", "here", "--N", "4"]
    assert main(["simulate", *words, "--K", "2", "--M", "4"]) == 0
    assert title in capsys.readouterr().out
    assert main(["advise", *words]) == 0
    assert f"on 2 x {title}" in capsys.readouterr().out


def test_the_sum_of_gradients_is_a_ring_s_and_only_its_end_is_exposed():
    link = LinkSpeed(latency=1e-3, bytes_per_second=1e6)
    seconds = [all_reduce_seconds(10**6, D, link) for D in (1, 2, 4)]
    assert seconds == pytest.approx([0.0, 2e-3 + 1.0, 6e-3 + 1.5])
    # The last backwards of the stages end at 6 and at 4.
    timeline = Timeline((Span("B", 1, 0, 2.0, 4.0), Span("B", 0, 0, 4.0, 6.0)), stages=2)
    exposed = [exposed_seconds(timeline, each) for each in ([0.0, 1.5], [0.0, 2.5], [3.0, 2.5])]
    assert exposed == pytest.approx([0, 0.5, 3])


@pytest.fixture
def saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The file of a plan for two V100, and the command that the answer prints."""
    path = tmp_path / "plan.json"
    assert main([*ON, "--optimizer", "adam", "--save", str(path)]) == 0
    output = capsys.readouterr().out
    assert f"`repro run --spec {path}` measures it" in output
    (line,) = re.findall("repro run sweep .*", output)
    (tmp_path / "command").write_text(line)
    return path


@pytest.mark.usefixtures("two_cores")
def test_a_plan_is_measured(saved: Path, tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr(runner, "workers", lambda *_: Crew())
    plan = RunSpec(**json.loads(saved.read_text()))
    words = shlex.split((tmp_path / "command").read_text())[2:]
    (chosen,) = choose(PlanOptions, "plan", words).chosen
    (group,) = chosen.build("laptop").groups
    assert group.runs[-1] == plan, "the printed command is the plan"
    words = ["--spec", str(saved), "--scale", "smoke", "--results", str(tmp_path)]
    assert main(["run", *words, "--rounds", "1", "--wandb", "disabled"]) == 0
    assert load(tmp_path).runs[-1].spec == plan
    assert load(tmp_path).baseline(load(tmp_path).runs[-1], **PLAIN) is not None
    capsys.readouterr()
    code = plan.model_copy(update={"model": "import:nothing_here:layers"})
    saved.write_text(code.model_dump_json(exclude_none=True))
    assert main(["run", *words]) == 2
    assert "look at both, then add --trust to run it" in capsys.readouterr().err
