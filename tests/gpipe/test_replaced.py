"""Layers and weights that the user puts in place of others, after the Pipeline was built."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from repro.gpipe import Pipeline, launch

MSE = nn.functional.mse_loss
STEPS = 4
WAYS = ((2, 1), (1, 2))  # stages, replicas


class Counting(nn.Module):
    """Has a buffer that a forward changes, so F and R must see the same."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += 1
        return x * self.seen


def model():
    """Two layers for each of two stages; the last one is frozen until it is thawed."""
    torch.manual_seed(0)
    last = nn.Linear(4, 4).requires_grad_(False)
    return nn.Sequential(
        nn.Linear(4, 4), nn.Tanh(), nn.Sequential(nn.Linear(4, 4), nn.Tanh()), last
    )


def put(path, layer):
    """Put a layer in the place of the one at this path, if it is here."""

    def change(module):
        torch.manual_seed(5)
        if path in dict(module.named_modules()):
            module.set_submodule(path, layer())

    return change


def of_last(change):
    return lambda module: change(module.get_submodule("3")) if "3" in module._modules else None


CHANGES = {
    "last": put("3", lambda: nn.Linear(4, 4)),
    "inside": put("2.0", lambda: nn.Linear(4, 4)),
    "weight": of_last(lambda layer: setattr(layer, "weight", nn.Parameter(torch.ones(4, 4)))),
    "weight norm": of_last(weight_norm),
    "thawed": of_last(lambda layer: layer.requires_grad_(True)),
    # What a replica's forwards change is not what the whole batch's one forward does.
    "buffer": put("1", Counting),
    "norm": put("1", lambda: nn.BatchNorm1d(4)),
}
OTHERS = {
    "append": lambda module: module.append(nn.Tanh()),
    "rename": lambda module: module.add_module("other", module.pop(0)),
}


def batch():
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(1)), torch.ones(6, 4)


def optimizer_of(module):
    return torch.optim.SGD([{"params": list(module.parameters())}], lr=0.1, weight_decay=0.1)


def plain(change):
    whole, losses = model(), []
    for step in range(STEPS):
        if step == 2:
            change(whole)
        loss = MSE(whole(batch()[0]), batch()[1])
        whole.zero_grad()
        loss.backward()
        optimizer_of(whole).step()
        losses.append(loss.item())
    whole.eval()
    return [*losses, MSE(whole(batch()[0]), batch()[1]).item()], whole.state_dict()


def trained(case, stages, replicas):
    """The same through a pipeline of one micro-batch."""
    balance = [4 // stages] * stages
    pipe = Pipeline(model(), stages, 1, replicas=replicas, balance=balance, device="cpu")
    x, y = [t.chunk(replicas)[pipe.replica] for t in batch()]
    losses = []
    for step in range(STEPS):
        if step == 2:
            CHANGES[case](pipe.module)
        losses.append(pipe.train_step(x, y, MSE, optimizer_of(pipe)).loss)
    losses.append(pipe.evaluate(x, y, MSE).loss)
    pipe.close()
    return losses, pipe.module.state_dict()


def refusals(case, folder):
    """What is said on each rank where the first stage has other layers, of a step and of a save."""
    pipe = Pipeline(model(), 2, 2, balance=[2, 2], device="cpu")
    before = pipe.train_step(*batch(), MSE).loss
    layers = dict(pipe.module.named_children())
    if pipe.is_first:
        OTHERS[case](pipe.module)
    said = []
    for call in (lambda: pipe.train_step(*batch(), MSE), lambda: pipe.save(folder)):
        try:
            call()
        except ValueError as error:
            said.append(str(error))
    pipe.module._modules.clear()
    pipe.module._modules.update(layers)
    assert pipe.train_step(*batch(), MSE).loss == before
    pipe.close()
    return said


def everything(folder):
    refused = {case: refusals(case, Path(folder) / case) for case in OTHERS}
    return {(case, *way): trained(case, *way) for case in CHANGES for way in WAYS}, refused


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    return launch(everything, str(tmp_path_factory.mktemp("checkpoints")), stages=2)


@pytest.mark.parametrize(("stages", "replicas"), WAYS)
@pytest.mark.parametrize("case", CHANGES)
def test_what_takes_the_place_of_another_is_trained_and_evaluated(ran, case, stages, replicas):
    if replicas > 1 and case in ("buffer", "norm"):
        return
    losses, weights = plain(CHANGES[case])
    (found, first), (others, second) = (one[0][case, stages, replicas] for one in ran)
    assert found == others
    assert found == pytest.approx(losses, rel=1e-5)
    assert {**first, **second}.keys() == weights.keys()
    for key, value in weights.items():
        torch.testing.assert_close({**first, **second}[key], value, rtol=1e-5, atol=1e-6)
        assert replicas == 1 or torch.equal(first[key], second[key])


@pytest.mark.parametrize("case", OTHERS)
def test_layers_that_were_added_or_removed_are_refused_on_all_ranks(ran, case):
    """Nothing is trained or written, and with the layers as they were training goes on."""
    step, save = ran[0][1][case]
    assert ran[1][1][case] == [step, save]
    assert step.startswith("pipe.module: its layers are ")
    assert step in save
    assert "\n" not in step + save
