"""Optimizer state by name follows its parameter to any K; other optimizers are refused."""

from itertools import accumulate, pairwise

import pytest
import torch
from checkpoints import (
    CUTS,
    OPTIMIZERS,
    Stages,
    get,
    model,
    named,
    names,
    noisy,
    optimizer_of,
    put,
    refused,
    same,
    stepped,
)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_optimizer_state_follows_its_parameter(tmp_path, kind):
    """From K = 2 to K = 1 and to K = 3, in threads; the groups are of other sizes at each K."""

    def stages(K):
        torch.manual_seed(4)
        layers = [(str(n), make()) for n, make in enumerate(noisy())]
        ends = [0, *accumulate(CUTS[K])]
        modules = [named(dict(layers[a:b])) for a, b in pairwise(ends)]
        return [(module, optimizer_of(module, kind)) for module in modules]

    def states(pairs):
        named = [(name, p, o) for module, o in pairs for name, p in module.named_parameters()]
        return {f"{name} {key}": value for name, p, o in named for key, value in o.state[p].items()}

    saved = stages(2)
    for step, (module, optimizer) in enumerate(saved * 2):
        assert optimizer is not None
        for p in module.parameters():
            p.grad = torch.randn_like(p)
        optimizer.step()
        for group in optimizer.param_groups if step > 1 else ():
            group["lr"] /= 4

    def one(rank, gather):
        module, optimizer = saved[rank]
        put(tmp_path, module, optimizer, step=2, rank=rank, gather=gather, layers=names(6))

    assert Stages(2).all(one) == [None, None]
    for K in (1, 3):
        loaded = stages(K)
        for module, optimizer in loaded:
            get(tmp_path, module, optimizer, layers=names(6))
            for group in optimizer.param_groups if optimizer else ():
                assert group["lr"] == OPTIMIZERS[kind]["lr"] / 4
                assert {p.ndim > 1 for p in group["params"]} == {group["weight_decay"] > 0}
        assert same(states(saved), states(loaded))
    assert len(states(saved)) >= 8


def test_options_of_the_process_and_of_a_scheduler(tmp_path):
    """How to compute is this process's choice; what a scheduler remembers in a group is kept."""
    module = model(4, 4)
    optimizer = stepped(module, foreach=False)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer.param_groups[0]["lr"] = torch.tensor(0.05)
    put(tmp_path, module, optimizer)
    fresh = torch.optim.Adam(module.parameters(), foreach=True, capturable=False)
    get(tmp_path, module, fresh)
    group = fresh.param_groups[0]
    assert (group["foreach"], group["initial_lr"], group["lr"]) == (True, 0.1, torch.tensor(0.05))


def test_another_optimizer_is_refused_and_the_weights_left_alone(tmp_path):
    module = model(4, 4, 4)
    optimizer = stepped(module, "SGD", momentum=0.9)
    put(tmp_path / "no optimizer", module)
    put(tmp_path / "one group", module, optimizer)
    groups = [
        {"params": layer.parameters(), "lr": lr}
        for layer, lr in zip(module, (0.1, 0.2), strict=True)
    ]
    put(tmp_path / "two groups", module, torch.optim.SGD(groups))
    alike = [{"params": layer.parameters()} for layer in module]
    put(tmp_path / "two alike", module, torch.optim.SGD(alike, lr=0.1))
    put(tmp_path / "first layer", module, torch.optim.SGD(module[0].parameters()))
    other = model(4, 4, 4, seed=3)
    before = {key: value.clone() for key, value in other.state_dict().items()}
    SGD, Adam = torch.optim.SGD, torch.optim.Adam
    own_rates = [
        {"params": layer.parameters(), "lr": lr}
        for layer, lr in zip(other, (0.5, 0.01), strict=True)
    ]
    for folder, fresh, words in (
        ("no optimizer", SGD(other.parameters()), "saved without an optimizer, not SGD"),
        ("one group", Adam(other.parameters()), "saved with SGD, not Adam"),
        (
            "one group",
            SGD(other[0].parameters()),
            r"1\.weight was in the saved optimizer and is not in this one",
        ),
        ("first layer", SGD(other.parameters()), r"1\.weight was not in the saved optimizer"),
        (
            "two groups",
            SGD(other.parameters()),
            r"0\.weight and 1\.weight are in one group.*lr=0\.1 and lr=0\.2",
        ),
        (
            "two alike",
            SGD(other.parameters()),
            r"parameter groups are not those that were saved \(see 1\.weight\)",
        ),
        (
            "one group",
            SGD(own_rates, momentum=0.9),
            r"parameter groups are not those that were saved \(see 1\.weight\)",
        ),
        ("one group", "sgd", "optimizer: a str, which is no optimizer"),
        (
            "one group",
            SGD(model(4, 4).parameters()),
            r"of shape \(4, 4\) is not of this stage's layers",
        ),
    ):
        refused(words, get, tmp_path / folder, other, fresh)
        assert same(before, other.state_dict())
        assert isinstance(fresh, str) or not fresh.state
        assert [group["lr"] for group in own_rates] == [0.5, 0.01]
    get(tmp_path / "one group", other)
    assert same(other.state_dict(), module.state_dict())


@pytest.mark.parametrize(
    ("options", "extra", "words"),
    [
        ({"hook": print}, None, "hook: a builtin_function_or_method cannot be saved"),
        ({}, "abc", "extra: a str, needed is a dict"),
        ({}, [1], "extra: a list, needed is a dict"),
        (
            {},
            {"generator": torch.Generator()},
            "extra: .*Generator is not JSON serializable; use numbers",
        ),
    ],
)
def test_what_cannot_be_saved(tmp_path, options, extra, words):
    module = model(4, 4)
    optimizer = stepped(module)
    optimizer.param_groups[0].update(options)
    refused(words, put, tmp_path / "run", module, optimizer, extra=extra)
    assert not (tmp_path / "run").exists()
