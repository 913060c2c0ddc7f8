"""What `repro plan` and `repro run` refuse before any process is started, each in one line."""

import sys
from pathlib import Path
from typing import get_args

import pytest
from crew import spec

from repro.cli.main import main
from repro.harness import catalog, machine, rehearsal
from repro.harness.spec import Scale

MODELS = """
from functools import partial
from torch import nn
from repro.models import Model

def good(width=8):
    return [nn.Flatten, partial(nn.Linear, 3072, width), nn.ReLU, partial(nn.Linear, width, 10)]

def shapes(width=8):
    return [nn.Flatten, partial(nn.Linear, 3072, width), partial(nn.Linear, 7, 10)]

def no_data(width=8):
    def batch(N, seed):
        raise FileNotFoundError("no data.bin here")
    return Model("mine", good(width), batch, nn.MSELoss(), "x/s")

class Values(nn.Module):
    def forward(self, x):
        return x * (x > 0).sum().item()

def needs_values(width=8):
    return [Values, *good(width)]
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A folder with a user's models."""
    (tmp_path / "rehearsed_models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(machine, "gpus", lambda: ())
    monkeypatch.setattr(machine, "cores", lambda: 2)
    yield
    sys.modules.pop("rehearsed_models", None)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "resnet50"], "did you mean 'timm:resnet50'"),
        (["--model-args", "Q=3"], "Q=3: transformer has no such argument"),
        (["--model", "import:rehearsed_models:shapes"], "layers[2] (Linear) cannot be counted"),
        (["--model", "import:rehearsed_models:no_data"], "FileNotFoundError: no data.bin here"),
        (["--K", "9"], "K = 9 stages, but transformer has L = "),
    ],
)
def test_plan_refuses_what_run_refuses(arguments: list[str], words: str, capfd):
    for verb in ("plan", "run"):
        assert main([verb, "sweep", "--scale", "smoke", *arguments]) == 2
        (line,) = capfd.readouterr().err.splitlines()
        assert line.startswith("error: ")
        assert words in line
    assert not [*Path().glob("results/*/")], "nothing is recorded"


def test_timing_layers_refuses_the_same(capfd: pytest.CaptureFixture[str]):
    assert main(["predict", "import:rehearsed_models:shapes", "--device", "here"]) == 2
    assert "layers[2] (Linear) cannot be counted" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["good", "needs_values"])
def test_what_works_or_needs_values_is_planned(name: str):
    model = f"import:rehearsed_models:{name}"
    rehearsal.check([spec(K, model=model, model_args={}) for K in (1, 2)])


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
