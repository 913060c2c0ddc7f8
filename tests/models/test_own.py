import sys

import pytest
import torch

from repro.models import Model, build
from repro.models.arguments import UnusableError

SOURCE = """
from functools import partial
from torch import nn
from repro.models import build

def sequential(width=8):
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, width), nn.Linear(width, 10))

def factories(image, num_classes):
    return [nn.Flatten, partial(nn.Linear, 3 * image * image, num_classes)]

def whole_model(L):
    return build("timed", L=L)

def one_module():
    return nn.Linear(3, 3)

def with_a_number():
    return [nn.Flatten(), 3]

def nothing():
    return []

def fails(width=8):
    if width % 2:
        raise ValueError(f"width = {width}: must be even")
    assert width != 4, "no"
    return {}["a"]

not_a_function = 7
"""


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    (tmp_path / "users_models.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield "import:users_models"
    sys.modules.pop("users_models", None)


def run(model: Model, N: int = 4) -> torch.Tensor:
    value, targets = model.batch(N, 0)
    for layer in model.layers:
        value = (layer if isinstance(layer, torch.nn.Module) else layer())(value)
    return model.loss(value, targets)


def test_a_sequential_trains_on_the_digits(user_module):
    model = build(f"{user_module}:sequential", width=6)
    assert len(model.layers) == 3
    assert model.unit == "images/s"
    assert run(model).ndim == 0


def test_ready_made_layers_have_the_same_weights_in_every_process_and_leave_the_generator_alone(
    user_module,
):
    before = torch.get_rng_state()
    first = build(f"{user_module}:sequential").layers[1].get_parameter("weight")
    assert torch.equal(before, torch.get_rng_state())
    torch.rand(1)
    assert torch.equal(first, build(f"{user_module}:sequential").layers[1].get_parameter("weight"))


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("users_models", "with a colon before the function"),
        ("no_such_module:f", "no module no_such_module in"),
        ("users_models:sequentail", "has no function sequentail; did you mean 'sequential'"),
        ("users_models:not_a_function", "has no function not_a_function"),
        ("users_models:one_module", "returned an object of type Linear; .* nn.Sequential"),
        ("users_models:with_a_number", "returned an object of type int as layer 1"),
        ("users_models:nothing", "returned no layers"),
    ],
)
def test_a_wrong_path_is_a_one_line_error(user_module, path, words):
    with pytest.raises(ValueError, match=f"^model='import:{path}': .*{words}.*$"):
        build(f"import:{path}")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            "import there_is_no_such_module\n",
            r"ModuleNotFoundError: No module .*there_is_no_such_module' "
            r"\(broken_model.py, line 1\)",
        ),
        ("x = 1\n1 / 0\n", r"ZeroDivisionError: division by zero \(broken_model.py, line 2\)"),
        ("def f(:\n", r"SyntaxError: invalid syntax \(broken_model.py, line 1\)"),
        ("raise SystemExit(3)\n", r"SystemExit: 3 \(broken_model.py, line 1\)"),
    ],
)
def test_an_import_that_fails_inside_the_users_module_is_one_line(
    user_module, tmp_path, source, words
):
    (tmp_path / "broken_model.py").write_text(source)
    sys.modules.pop("broken_model", None)
    with pytest.raises(
        UnusableError,
        match=f"^model='import:broken_model:f': importing broken_model raised {words}$",
    ):
        build("import:broken_model:f")


def test_a_function_that_fails_is_one_line_and_a_refusal_is_its_own_words(user_module):
    with pytest.raises(ValueError, match=r"^width = 7: must be even$"):
        build(f"{user_module}:fails", width=7)
    with pytest.raises(
        UnusableError,
        match=r"^model=.* with width=2: the function raised KeyError: 'a' \(.*, line 28\)$",
    ):
        build(f"{user_module}:fails", width=2)
    with pytest.raises(
        ValueError, match=r"with width=4: the function raised AssertionError: no \(users_models.py"
    ) as it:
        build(f"{user_module}:fails", width=4)
    assert not isinstance(it.value, UnusableError), "torch's own layers refuse sizes so"
