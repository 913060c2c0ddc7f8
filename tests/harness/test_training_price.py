from pathlib import Path
from typing import Any

import pytest
from crew import MACHINE

from repro.cli.main import main
from repro.harness import machine, plan, predict
from repro.harness.machine import Machine
from repro.harness.spec import Experiment, Group, RunSpec, Training
from repro.harness.tasks.simulate import simulated
from repro.harness.training_price import TrainingPrice, price_trainings

H200 = Machine("cuda", "NVIDIA H200", 0, "nccl", "2.15.0")
MODEL = {"L": 3, "D": 8, "image": 64, "num_classes": 5}
RECIPE = {"lr": 0.1, "optimizer": "rmsprop"}


def training(steps: int = 10, **changed: Any) -> RunSpec:
    what = {"data": ("digits",), "recipe": RECIPE}
    what |= {name: changed.pop(name) for name in Training.model_fields if name in changed}
    fields = {"K": 2, "M": 2, "N": 8, "balance": "parameters", "model_args": MODEL, **changed}
    spec = {"model": "amoebanet-b", "task": "learn", "trace": False, "steps": steps}
    return RunSpec(**spec, **fields, training=Training(**what))


def price(folder: Path, *runs: RunSpec, here: Machine = MACHINE) -> TrainingPrice:
    group = Group(name="g", runs=runs)
    experiment = Experiment(name="e", title="", question="", groups=(group,))
    priced = price_trainings([plan.make(experiment, "paper", here, folder)])
    assert priced is not None
    return priced


def test_hours_are_those_of_simulated_steps_on_all_gpus(tmp_path: Path):
    run = training(3600, D=2)
    as_simulated = RunSpec(
        **{name: getattr(run, name) for name in ("model", "model_args", "K", "M", "balance")},
        N=4,
        optimizer="rmsprop-momentum",
        fidelity="simulated",
        profile="h100",
    )
    record = simulated(as_simulated, "cpu").record
    priced = price(tmp_path, run)
    assert priced.gpu_hours == pytest.approx(4 * record.step_s[0])  # pyright: ignore
    assert priced.devices == 4
    assert priced.peak_bytes == max(record.peak_bytes or ())  # pyright: ignore
    assert "which fits into" in priced.lines[1]


def test_seeds_add_up_and_a_shared_pretraining_counts_once(tmp_path: Path):
    alone = price(tmp_path, training()).gpu_hours
    seeds = [training(seed=seed) for seed in range(3)]
    assert price(tmp_path, *seeds).gpu_hours == pytest.approx(3 * alone)
    before = Training(data=("digits",), data_args={"classes": [0, 4]}, recipe=RECIPE, steps=40)
    tuned = [
        training(pretraining=before, data_args={"classes": classes}) for classes in ([5, 9], [4, 8])
    ]
    assert price(tmp_path, *tuned).gpu_hours == pytest.approx((2 + 4) * alone)


FILE = """
from repro.harness.spec import Experiment, Group, RunSpec, Training

def experiment(scale="laptop"):
    training = Training(data=("cars",), recipe={"lr": 0.1})
    run = RunSpec(model="amoebanet-b", model_args={"L": 3, "D": 8, "image": 64}, K=2, M=2, N=8,
                  steps=10, task="learn", trace=False, balance="parameters", training=training)
    return Experiment(name="e", title="", question="", groups=(Group(name="g", runs=(run,)),))
"""


def test_the_price_is_printed_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    file = tmp_path / "mine.py"
    file.write_text(FILE)
    arguments = [str(file), "--scale", "paper", "--results", str(tmp_path / "results")]
    monkeypatch.setattr(machine, "gpus", lambda: ())
    assert main(["plan", *arguments]) == 0
    out = capsys.readouterr().out
    for words in ("GPU-hours, simulated on NVIDIA H100", "downloads: 1.96 GB: cars 1.96 GB"):
        assert words in out
    monkeypatch.setattr(machine, "gpus", lambda: ("NVIDIA H100",) * 2)
    on_cpu = lambda spec, _: predict.source_of(spec, "cpu")  # noqa: E731
    monkeypatch.setattr("repro.harness.training_price.source_of", on_cpu)
    assert main(["run", *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "would train for about" in line
    assert "1.96 GB of downloads and skip 0 runs; add --yes to start" in line
    assert not list(tmp_path.rglob("journal.jsonl"))
