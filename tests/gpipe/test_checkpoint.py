"""Checkpoints: the same bits at any K, the unsplit model's keys, errors of one line."""

import pytest
import torch
from checkpoints import (
    get,
    interrupted,
    model,
    named,
    names,
    put,
    refused,
    same,
    stepped,
)
from examples import linear, noisy
from torch import nn

from repro.gpipe import Pipeline, launch
from repro.gpipe.checkpoint.save_load import own_part, whole_state_dict


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    launch(interrupted, folder, stages=3)
    return folder


@pytest.mark.parametrize("K", [1, 3])
@pytest.mark.parametrize("kind", ["SGD", "Adam"])
def test_training_goes_on_bit_for_bit_at_any_k(trained, kind, K):
    """Dropout, batch norm, two groups, a changed learning rate, a stage without parameters."""
    straight = whole_state_dict(trained / kind / "straight")
    assert not same(straight, whole_state_dict(trained / kind / "half"))
    assert same(straight, whole_state_dict(trained / kind / str(K)))


def test_the_unsplit_model_loads_it(trained):
    unsplit = nn.Sequential(*(make() for make in noisy()))
    whole = whole_state_dict(trained / "Adam" / "3")
    unsplit.load_state_dict(whole)
    assert list(whole) == list(unsplit.state_dict())
    assert len(list((trained / "Adam" / "3").glob("stage*.pt"))) == 3


def test_loads_in_place_and_bit_for_bit(tmp_path):
    """Optimizer state too: a step count stays on the CPU as a float of its own, strides stay."""
    module = named(
        {"0": nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last), "1": nn.BatchNorm2d(4)}
    )
    module[1].register_buffer("scratch", torch.ones(1), persistent=False)
    optimizer = stepped(module, "Adam")
    with torch.no_grad():
        module.get_parameter("0.bias").copy_(
            torch.tensor([float("nan"), float("-inf"), -0.0, 1e-45])
        )
    put(tmp_path, module, optimizer, step=7, extra={"epoch": 2}, allow_nonfinite=True)
    other = named({"0": nn.Conv2d(3, 4, 3), "1": nn.BatchNorm2d(4)}).to(
        memory_format=torch.channels_last
    )
    fresh = torch.optim.Adam(other.parameters(), lr=9.0, eps=1.0)
    parameters = list(other.parameters())
    restored = get(tmp_path, other, fresh)
    assert (restored.step, restored.extra) == (7, {"epoch": 2})
    assert all(a is b for a, b in zip(parameters, other.parameters(), strict=True))
    for key, value in module.state_dict().items():
        assert value.numpy().tobytes() == other.state_dict()[key].numpy().tobytes(), key
    assert "1.scratch" not in whole_state_dict(tmp_path)
    for ours, theirs in zip(module.parameters(), parameters, strict=True):
        assert same(optimizer.state[ours], fresh.state[theirs])
        assert fresh.state[theirs]["exp_avg"].stride() == optimizer.state[ours]["exp_avg"].stride()
    assert (fresh.param_groups[0]["lr"], fresh.param_groups[0]["eps"]) == (0.1, 1e-8)


def test_tied_parameters_stay_tied(tmp_path):
    def tied():
        module = model(4, 4, 4)
        module[1].register_parameter("weight", module[0].get_parameter("weight"))
        return module

    module = tied()
    optimizer = stepped(module, "SGD", momentum=0.9)
    put(tmp_path, module, optimizer)
    other = tied()
    fresh = torch.optim.SGD(other.parameters(), lr=1.0, momentum=0.9)
    get(tmp_path, other, fresh)
    whole = whole_state_dict(tmp_path)
    assert whole["0.weight"].data_ptr() == whole["1.weight"].data_ptr()
    assert torch.equal(other.get_parameter("1.weight"), module.get_parameter("0.weight"))
    assert len(fresh.state) == len(optimizer.state) == 3


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (lambda: model(4, 4), r"it has 2 layers \(0 to 1\), and this model has 1 layers"),
        (
            lambda: model(4, 4, 5),
            r"1\.weight is float32 \[4, 4\], this model's is float32 \[5, 4\]",
        ),
        (
            lambda: model(4, 4, 4).double(),
            r"0\.weight is float32 \[4, 4\], this model's is float64",
        ),
        (
            lambda: named({"0": nn.Linear(4, 4), "1": nn.ReLU()}),
            r"unexpected key 1\.weight",
        ),
        (
            lambda: named({"0": nn.Linear(4, 4), "1": nn.BatchNorm1d(4)}),
            r"1\.weight is float32 \[4, 4\]",
        ),
        (
            lambda: named({"0": nn.Linear(4, 4), "1": nn.Sequential(nn.Linear(4, 4))}),
            r"no 1\.0\.weight",
        ),
    ],
)
def test_another_model_is_refused_and_left_alone(tmp_path, other, words):
    put(tmp_path, model(4, 4, 4))
    module = other()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    refused(words, get, tmp_path, module)
    assert same(before, module.state_dict())


def test_own_part_of_a_state_dict():
    unsplit = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    whole = unsplit.state_dict()
    stage = model(4, 4, first=1)
    assert same(
        own_part(whole, stage, names(3)), {key: whole[key] for key in ("1.weight", "1.bias")}
    )
    half = {key: value.half() for key, value in whole.items()}
    stage.load_state_dict(own_part(half, stage, names(3)))
    assert stage.get_parameter("1.weight").dtype == torch.float32
    prefixed = {f"module.{key}": value for key, value in whole.items()}
    refused(
        r"no 1\.weight; the first key there is module\.0\.weight",
        own_part,
        prefixed,
        stage,
        names(3),
    )
    refused(
        r"1\.weight is float32 \[3\]",
        own_part,
        whole | {"1.weight": torch.ones(3)},
        stage,
        names(3),
    )
    refused(
        r"unexpected key 1\.scale", own_part, whole | {"1.scale": torch.ones(3)}, stage, names(3)
    )
    refused(r"unexpected key 2\.weight", own_part, whole, stage, names(2))


def test_a_folder_that_is_none_is_refused_in_the_words_of_what_is_wrong(tmp_path):
    pipe = Pipeline([linear], 1, 1, device="cpu")
    refused(r"no index.json there; name a folder that save\(\) wrote", pipe.load, tmp_path / "none")
    (tmp_path / "file").touch()
    refused(r"Not a directory.*take another checkpoint", pipe.load, tmp_path / "file")
    with pytest.raises(OSError, match=r"stage 0 .*File exists"):
        pipe.save(tmp_path / "file")
