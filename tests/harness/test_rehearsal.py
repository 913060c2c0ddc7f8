"""What `repro plan` and `repro run` refuse before any process is started, each in one line."""

import sys
from pathlib import Path
from typing import Any

import pytest
from crew import Crew, spec

from repro.cli.main import main
from repro.harness import machine, rehearsal, runner
from repro.harness.spec import RunSpec

MODELS = """
from functools import partial
import torch
from torch import nn
from repro.models import Model

calls = []

def good(width=8):
    return [nn.Flatten, partial(nn.Linear, 3072, width), nn.ReLU, partial(nn.Linear, width, 10)]

def shapes(width=8):
    return [nn.Flatten, partial(nn.Linear, 3072, width), partial(nn.Linear, 7, 10)]

def refuses(width=8):
    raise ValueError(f"width = {width}: must be a multiple of 16")

def fails(width=8):
    return {}["a"]

def late(width=8):
    encoder = partial(nn.TransformerEncoderLayer, width, 3)
    return [nn.Flatten, partial(nn.Linear, 3072, width), encoder]

def targets(width=8):
    batch = lambda N, seed: (torch.rand(N, 3072), torch.rand(N, 3))
    return Model("mine", good(width)[:2], batch, nn.MSELoss(), "x/s")

def no_data(width=8):
    def batch(N, seed):
        raise FileNotFoundError("no data.bin here")
    return Model("mine", good(width), batch, nn.MSELoss(), "x/s")

class Numpy(nn.Module):
    def forward(self, x):
        calls.append(tuple(x.shape))
        positive = x[x > -1].numpy()  # neither works on fake tensors
        return torch.from_numpy(positive).view(x.shape)

def real_only(width=8):
    return [Numpy, *good(width)]

class Silent(ValueError):
    def __str__(self):
        raise TypeError("no text")

def silent(width=8):
    raise Silent

class SilentLayer(nn.Module):
    def forward(self, x):
        raise Silent

def silent_layer(width=8):
    return [SilentLayer, *good(width)]

def colours(width=8):
    raise RuntimeError("\x1b[31mred\x1b[0m")

def ready_made(width=8):
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(3072), nn.Linear(3072, 10))
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A folder with a user's models; workers must not be started."""
    (tmp_path / "rehearsed_models.py").write_text(MODELS)
    (tmp_path / "rehearsed_missing.py").write_text("import there_is_no_such_module\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(machine, "gpus", lambda: ())
    monkeypatch.setattr(machine, "cores", lambda: 2)

    def started(*_: object) -> Crew:
        raise AssertionError("workers were started")

    monkeypatch.setattr(runner, "workers", started)
    yield
    sys.modules.pop("rehearsed_models", None)


def own(name: str, **changed: Any) -> RunSpec:
    return spec(model=f"import:rehearsed_models:{name}", model_args={}, **changed)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "resnet50"], "did you mean 'timm:resnet50'"),
        (["--model", "transformr"], "did you mean 'transformer'"),
        (["--model-args", "Q=3"], "Q=3: transformer has no such argument"),
        (
            ["--model", "amoebanet-d", "--model-args", "image=4"],
            "image=4: allowed is a height and width from 16 up",
        ),
        (["--model", "import:no_where:f"], "no module no_where in"),
        (["--model", "import:rehearsed_missing:f"], "No module named 'there_is_no_such_module'"),
        (["--model", "import:rehearsed_models:god"], "did you mean 'good'?"),
        (["--model", "import:rehearsed_models:refuses"], "width = 8: must be a multiple of 16"),
        (
            ["--model", "import:rehearsed_models:fails"],
            "the function raised KeyError: 'a' (rehearsed_models.py, line",
        ),
        (
            ["--model", "import:rehearsed_models:shapes"],
            "layers[2] (Linear), on a micro-batch of 16: RuntimeError: ",
        ),
        (
            ["--model", "import:rehearsed_models:late"],
            "layers[2] (TransformerEncoderLayer), on a micro-batch of 16",
        ),
        (["--model", "import:rehearsed_models:targets"], "loss, on a micro-batch of 16: "),
        (
            ["--model", "import:rehearsed_models:no_data"],
            "batch, on a micro-batch of 16: FileNotFoundError: no data",
        ),
        (["--model", "rehearsed_models:good"], "did you mean 'import:rehearsed_models:good'?"),
        (["--model", "import:rehearsed_models:silent"], "(its text cannot be shown: TypeError)"),
        (
            ["--model", "import:rehearsed_models:silent_layer"],
            "Silent: (its text cannot be shown: TypeError)",
        ),
        (["--model", "import:rehearsed_models:colours"], r"RuntimeError: \x1b[31mred\x1b[0m"),
        (["--K", "9"], "K = 9 stages, but transformer has L = "),
    ],
)
def test_plan_refuses_what_run_refuses(
    arguments: list[str], words: str, capfd: pytest.CaptureFixture[str]
):
    told = []
    for verb in ("plan", "run"):
        assert main([verb, "sweep", "--scale", "smoke", *arguments]) == 2
        told.append(capfd.readouterr().err)
        sys.modules.pop("rehearsed_missing", None)
    assert told[0] == told[1]
    assert told[0].startswith("error: ")
    assert told[0].count("\n") == 1
    assert words in told[0]
    assert not Path("results").exists()


def test_what_works_is_planned(capfd: pytest.CaptureFixture[str]):
    assert (
        main(["plan", "sweep", "--scale", "smoke", "--model", "import:rehearsed_models:good"]) == 0
    )
    assert "4 to measure" in capfd.readouterr().out


def test_what_fake_tensors_cannot_do_is_tried_on_real_ones():
    rehearsal.rehearse([own("real_only")], "cpu")
    assert (8, 3, 32, 32) in sys.modules["rehearsed_models"].calls


def test_each_distinct_model_passes_once(monkeypatch: pytest.MonkeyPatch):
    passed = []
    monkeypatch.setattr(rehearsal, "rehearse", lambda specs, device: passed.extend(specs))
    wide = own("good").model_copy(update={"model_args": {"width": 16}})
    rehearsal.check(
        [own("good", K=K, M=M) for K in (1, 2) for M in (1, 4)] + [wide, spec(1, 4)], "cpu"
    )
    assert passed == [own("good"), wide]
