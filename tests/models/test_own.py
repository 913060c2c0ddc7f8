import sys

import pytest
import torch

from repro.models import build

SOURCE = """
from torch import nn

def sequential(width=8):
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, width), nn.Linear(width, 10))

def one_module():
    return nn.Linear(3, 3)

def nothing():
    return []
"""


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    (tmp_path / "users_models.py").write_text(SOURCE)
    (tmp_path / "broken.py").write_text("x = 1\n1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "import:users_models"
    sys.modules.pop("users_models", None)


def test_ready_made_layers_have_the_same_weights_in_every_process(user_module):
    before = torch.get_rng_state()
    model = build(f"{user_module}:sequential", width=6)
    assert torch.equal(before, torch.get_rng_state())
    assert (len(model.layers), model.unit) == (3, "images/s")
    torch.rand(1)
    again = build(f"{user_module}:sequential", width=6)
    for one, other in zip(model.layers[1].parameters(), again.layers[1].parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("users_models", "with a colon before the function"),
        ("./users_models.py:sequential", "try import:users_models:sequential"),
        ("no_such_module:f", "no module no_such_module in"),
        ("users_models:sequentail", "has no function sequentail; did you mean 'sequential'"),
        ("users_models:one_module", "layers: expected an nn.Sequential .*, found Linear"),
        ("users_models:nothing", r"layers: .*, found list \(\[\]\)"),
        ("broken:f", r"importing broken raised ZeroDivisionError: .* \(broken.py, line 2\)"),
    ],
)
def test_a_wrong_path_is_a_one_line_error(user_module, path, words):
    with pytest.raises(ValueError, match=f"^model='import:{path}': .*{words}.*$"):
        build(f"import:{path}")
