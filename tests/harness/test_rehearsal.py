"""What `repro plan` and `repro run` refuse before any process is started, each in one line."""

from pathlib import Path
from typing import get_args

import pytest
from fakes import spec

from repro.cli.main import main
from repro.harness import catalog, machine, rehearsal
from repro.harness.spec import Scale


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "resnet50"], "did you mean 'timm:resnet50'"),
        (["--model-args", "Q=3"], "Q=3: transformer has no such argument"),
        (["--K", "9"], "K = 9 stages, but transformer has L = "),
    ],
)
def test_plan_refuses_what_run_refuses(
    arguments: list[str], words: str, capfd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "gpus", lambda: ())
    monkeypatch.setattr(machine, "cores", lambda: 2)
    for verb in ("plan", "run"):
        assert main([verb, "sweep", "--scale", "smoke", *arguments]) == 2
        (line,) = capfd.readouterr().err.splitlines()
        assert line.startswith("error: ")
        assert words in line
    assert not [*Path().glob("results/*/")], "nothing is recorded"


def test_what_waits_is_emulated_and_what_computes_is_measured():
    for wrong, words in (
        (spec(model="timed", model_args={}), "'measured': the layers of timed wait, so allowed is"),
        (spec(fidelity="emulated"), "'emulated': the layers of transformer compute"),
    ):
        with pytest.raises(ValueError, match=f"^fidelity = {words}"):
            rehearsal.check([wrong])


def test_our_pipeline_divides_no_layer():
    words = "^tensor_parallel = 2: .* 'channels' or 'rows'$"
    with pytest.raises(ValueError, match=words):
        rehearsal.check([spec(tensor_parallel=2)])


@pytest.mark.parametrize("scale", [scale for scale in get_args(Scale) if scale != "smoke"])
def test_every_experiment_starts_at_each_scale(scale: Scale):
    for name in catalog.names():
        groups = catalog.find(name).build(scale).groups
        rehearsal.check(run for group in groups for run in group.runs)
