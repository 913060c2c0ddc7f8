"""What crosses boundaries may change from one step to the next, and is followed on all stages."""

import logging

import pytest
import torch
from changes import (
    drawn_later,
    not_the_same_twice,
    optimizer_on_one_stage,
    overlapping_outputs,
    too_many_micro_batches,
)
from random_networks import WIDTH, CountsLater, InPlaceLater
from torch import nn

from repro.gpipe import Pipeline, launch
from repro.gpipe.comm.message import MessageMeta
from repro.gpipe.core.learnt import Learnt, Signatures
from repro.gpipe.runtime.launch import StageError

MSE = nn.functional.mse_loss


def test_a_layer_that_begins_to_draw_random_numbers():
    first, second = launch(drawn_later, stages=2)
    assert {tuple(losses) for losses, _ in first + second} == {tuple(first[0][0])}
    assert {number for _, number in first + second} == {first[0][1]}, (
        "the user's generator has moved"
    )


def test_writing_to_one_of_two_outputs_that_share_memory_is_refused():
    with pytest.raises(
        StageError, match=r"tensor 0 of what enters this stage, which shares memory.*clone\(\)"
    ):
        launch(overlapping_outputs, stages=2)


def test_parts_of_a_storage_do_not_overlap():
    whole = torch.zeros(4, 6)
    assert MessageMeta.of(tuple(whole.chunk(2, 1))).overlapping == ()
    assert MessageMeta.of((whole, torch.zeros(2), whole[:, 1:3])).overlapping == (0, 2)
    assert MessageMeta.of((whole[:, :4], whole[:, 3:])).overlapping == (0, 1)
    assert MessageMeta.of((whole[:, :1].expand(-1, 3), whole[:, 0])).overlapping == (0, 1)
    assert MessageMeta.of((whole.view(torch.int32), whole[:1])).overlapping == (0, 1)
    assert MessageMeta.of((whole[:0], whole)).overlapping == ()


def test_every_rank_says_that_m_is_larger_than_n():
    reasons = launch(too_many_micro_batches, 3, stages=3)
    assert len(set(reasons)) == 1
    assert reasons[0].startswith("micro_batches=8: the mini-batch has only 3 examples")


def test_a_layer_that_differs_between_forward_and_recompute_is_refused():
    assert all(
        "a layer must do the same both times" in reason
        for reason in launch(not_the_same_twice, stages=2)
    )


def test_an_optimizer_on_some_stages_only_is_refused():
    for said, gradients in launch(optimizer_on_one_stage, stages=2):
        assert said.startswith("optimizer: some ranks got one")
        assert gradients == [None, None]


@pytest.mark.parametrize("kind", [CountsLater, InPlaceLater])
def test_changes_are_followed_without_the_check_for_finite_values(kind):
    losses = []
    for allow in (False, True):
        torch.manual_seed(2)
        layer = kind(2)
        pipe = Pipeline([layer, nn.Linear(WIDTH, WIDTH)], 1, 2, device="cpu", allow_nonfinite=allow)
        optimizer = torch.optim.SGD(pipe.parameters(), lr=0.1)
        x = torch.randn(4, 3, WIDTH)
        for step in range(4):
            layer.step = step
            losses.append(pipe.train_step(x, x, MSE, optimizer).loss)
    assert losses[:4] == losses[4:]


def test_inputs_with_a_graph_get_their_gradient_once():
    """What the user computed the inputs from is differentiated once, at the end of the step."""
    layers = [nn.Linear(4, 4), nn.Tanh()]
    encoder = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    pipe = Pipeline(layers, 1, 3, device="cpu")
    x, y = torch.randn(7, 4), torch.randn(7, 4)
    pipe.train_step(encoder(x), y, MSE)
    found = [p.grad.clone() for p in encoder.parameters() if p.grad is not None]
    encoder.zero_grad()
    MSE(pipe.module(encoder(x)), y).backward()
    for gradient, parameter in zip(found, encoder.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad)


def test_only_so_many_signatures_are_remembered():
    signatures = Signatures(messages=2**12)
    for number in range(40):
        signatures.keep(number, Learnt())
        signatures.keep(0, Learnt())
    assert len(signatures) == 16
    assert signatures.get(0) is not None
    assert signatures.get(1) is None


def test_a_constant_that_changes_every_step_is_warned_of_once(caplog):
    class Scaled(nn.Module):
        def forward(self, value):
            return value[0] * value[1]

    pipe = Pipeline([Scaled()], 1, 2, device="cpu")
    with caplog.at_level(logging.WARNING):
        for step in range(25):
            pipe.train_step((torch.ones(4, 2, requires_grad=True), step), torch.ones(4, 2), MSE)
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 1
    assert warnings[0].startswith("steps are slow: each of the last 10 had inputs of a new kind")
    assert "a constant among them differs" in warnings[0]
