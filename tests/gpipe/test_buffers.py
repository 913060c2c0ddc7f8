"""Buffers that a forward changes do so once a micro-batch, and R computes with what F saw."""

from unittest.mock import Mock

import pytest
import torch
from examples import Means, batch
from torch import nn

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
