"""Buffers that a forward changes do so once a micro-batch, and R computes with what F saw."""

from unittest.mock import Mock

import pytest
import torch
from bits import Means, batch, changing
from torch import nn

from repro.gpipe import Pipeline
from repro.gpipe.exact.buffers import Changing, as_before

MSE = nn.functional.mse_loss
CHECKPOINTS = ["always", "except_last", "never"]


def test_what_changes_is_found_out_and_given_back():
    """In place, through `.data` and by reassignment."""
    means = Means()
    module = nn.Sequential(means)
    module.register_buffer("constant", torch.ones(2))
    changing = Changing(module.modules())
    assert not changing.snapshot()
    with changing.learning() as snapshot:
        first = module(batch()[0])
    names = {name for _, name, _ in snapshot}
    assert names == {"in_place", "by_data", "reassigned", "every_other", "count"}
    after = {name: buffer.clone() for name, buffer in means.named_buffers()}
    with as_before(snapshot):
        assert torch.equal(module(batch()[0]), first)
    assert all(torch.equal(buffer, after[name]) for name, buffer in means.named_buffers())
    assert {name for _, name, _ in changing.snapshot()} == names


def test_buffers_are_given_back_when_a_forward_fails():
    means = Means()
    changing = Changing([means])
    with changing.learning():
        means(batch()[0])
    after = {name: buffer.clone() for name, buffer in means.named_buffers()}
    means.register_forward_hook(Mock(side_effect=RuntimeError))
    with pytest.raises(RuntimeError), as_before(changing.snapshot()):
        means(batch()[0])
    assert all(torch.equal(buffer, after[name]) for name, buffer in means.named_buffers())


@pytest.mark.parametrize("schedule", ["gpipe", "gpipe-late", "1f1b"])
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_as_the_unsplit_model(checkpoint, schedule):
    """Values of buffers and losses against plain forwards in the order of the micro-batches."""
    pipe = Pipeline([Means], 1, 4, checkpoint=checkpoint, schedule=schedule, device="cpu")
    plain = Means()
    for _ in range(2):
        loss = pipe.train_step(*batch(), MSE).loss
        parts = zip(*(t.tensor_split(4) for t in batch()), strict=True)
        assert loss == pytest.approx(
            sum(MSE(plain(x), y).item() * len(x) / 10 for x, y in parts), rel=1e-6
        )
        found = dict(pipe.module[0].named_buffers())
        assert all(torch.equal(buffer, found[name]) for name, buffer in plain.named_buffers())


def test_evaluation_in_between_changes_no_bits():
    found = []
    for checkpoint in CHECKPOINTS:
        pipe = Pipeline(changing(), 1, 4, checkpoint=checkpoint, device="cpu")
        optimizer = torch.optim.SGD(pipe.parameters(), lr=0.1)
        for _ in range(2):
            pipe.train_step(*batch(), MSE, optimizer)
            pipe.evaluate(*batch(), MSE)
        found.append(pipe.module.state_dict())
    for other in found[1:]:
        assert all(torch.equal(found[0][key], other[key]) for key in found[0])
