"""What `repro plan` and `repro run` refuse before any process is started, each in one line."""

from pathlib import Path
from typing import Any, get_args

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


SIMULATED = {"fidelity": "simulated", "profile": "tpu-v2"}
ROWS = {"tensor_parallel": 2, "library": "rows", "trace": False}
WAITS = {"model": "timed", "model_args": {}}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (WAITS, "^fidelity = 'measured': the layers of timed wait, so allowed is"),
        ({"fidelity": "emulated"}, "^fidelity = 'emulated': the layers of transformer compute"),
        ({"tensor_parallel": 2}, "^tensor_parallel = 2: .* use library='tensor'$"),
        (ROWS, "^library = 'rows': .* set task='traffic' and model='amoebanet-d'$"),
        ({"fidelity": "simulated"}, "layers that compute need a device; one of a100"),
        (SIMULATED | {"profile": "tpu-v5"}, "tpu-v"),
        (SIMULATED | WAITS, "layers that wait have fixed times"),
    ],
)
def test_what_does_not_fit_the_model_is_one_line(changed: dict[str, Any], words: str):
    with pytest.raises(ValueError, match=words) as error:
        rehearsal.check([spec(**changed)])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("scale", [scale for scale in get_args(Scale) if scale != "smoke"])
def test_every_experiment_starts_at_each_scale(scale: Scale):
    for name in catalog.names():
        experiment = catalog.find(name).build(scale)
        assert experiment.name == name
        rehearsal.check(run for group in experiment.groups for run in group.runs)
