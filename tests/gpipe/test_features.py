"""Clipping, loss scaling and accumulation as in plain PyTorch; what every rank refuses."""

from itertools import pairwise

import features
import pytest
import torch
from features import MSE, NORM_TYPES, SCALER, SLOW, WAYS, D, N, batch

from repro.gpipe import NonFiniteError, Pipeline, launch
from repro.gpipe.runtime.launch import StageError


@pytest.fixture(scope="module")
def ran():
    """What four processes did, rank by rank."""
    return launch(features.everything, stages=4)


@pytest.mark.parametrize("norm_type", NORM_TYPES)
@pytest.mark.parametrize(("K", "copies"), WAYS)
def test_clipping_is_torchs_with_the_same_bits_for_every_k(ran, K, copies, norm_type):
    """Shared parameters count once, other number formats too, replicas not twice."""
    norms, state = features.clipped_plain(copies, norm_type)
    assert all(norm > 2 * NORM_TYPES[norm_type] for norm in norms)
    one = ran[0]["clipped", 1, 1, norm_type]
    for rank in range(K * copies):
        found = ran[rank]["clipped", K, copies, norm_type]
        torch.testing.assert_close(found[0], norms, rtol=1e-5, atol=0)
        if copies == 1:
            assert all(map(torch.equal, found[0], one[0]))
            assert all(torch.equal(value, one[1][key]) for key, value in found[1].items())
        for key, value in found[1].items():
            torch.testing.assert_close(value, state[key], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("K", "copies"), WAYS)
def test_loss_scaling_is_torchs(ran, K, copies):
    """An inf on one stage skips the update on all."""
    steps, state = features.scaled_plain(copies)
    scales = [SCALER["init_scale"], *(scale for scale, _ in steps)]
    skipped = [b < a for a, b in pairwise(scales)]
    assert any(skipped)
    assert not all(skipped)
    for rank in range(K * copies):
        found, own_state = ran[rank]["scaled", K, copies]
        for (scale, loss), (its_scale, its_loss) in zip(found, steps, strict=True):
            assert scale == its_scale
            assert loss == pytest.approx(its_loss, rel=1e-5)
        for key, value in own_state.items():
            torch.testing.assert_close(value, state[key], rtol=1e-4, atol=1e-6)


def test_a_scaler_that_is_disabled_or_torchs_own():
    pipe = Pipeline(features.scaled_model(), 1, 2, device="cpu")
    with pytest.raises(ValueError, match=r"scaler: GradScaler .* make it by pipe\.grad_scaler\(\)"):
        pipe.train_step(*batch(0), MSE, scaler=torch.amp.GradScaler("cpu"))  # pyright: ignore[reportArgumentType]
    scaler = pipe.grad_scaler(enabled=False)
    with pytest.raises(NonFiniteError):
        pipe.train_step(torch.full((N, 6), torch.inf), batch(0)[1][:N], MSE, scaler=scaler)


def test_gradients_add_up_over_steps_and_replicas(ran):
    whole = features.clipped_model()
    MSE(whole(batch(0)[0]), batch(0)[1]).backward()
    for replica in range(D):
        parts = [ran[2 * replica + j]["accumulated"] for j in range(2)]
        for key, parameter in whole.named_parameters():
            gradient = next(part[key] for part in parts if key in part)
            assert parameter.grad is not None
            torch.testing.assert_close(gradient, 1.0 + 2.0 * parameter.grad, rtol=1e-5, atol=1e-6)


def test_a_layer_that_begins_to_draw_is_refused_once_and_then_seeded(ran):
    found = [value for rank in ran for key, value in rank.items() if key[0] == "drawn"]
    assert len(found) == 3
    assert {tuple(losses) for losses, _ in found} == {tuple(found[0][0])}
    assert {number for _, number in found} == {found[0][1]}, "the user's generator has moved"


REFUSALS = {
    "no inputs": "inputs: None, but this stage reads the mini-batch",
    "M above N": "micro_batches=3: the mini-batch has only 2 examples",
    "optimizer here only": "optimizer: some ranks got one and others",
    "limits differ": "'max_norm': 2.0, 'norm_type': 2.0} on rank 1",
    "limit": "max_norm=-1.0: must be a number, at least 0",
    "clips late": "train_step has updated the weights already",
    "scales differ": "scaler: the scale is 9.0 on rank 1, but 8.0 on rank 0",
    "link": "throttle='slow': must be a LinkSpeed",
    "transport": "transport='tcp': choose one of auto, shm, gloo",
    "unlike": "seed=1 on rank 1, but 0 on rank 0",
    "flickers": "a layer must do the same both times",
}


def test_what_is_refused_is_refused_on_every_rank_in_one_line(ran):
    for rank in (0, 1):
        for what, words in REFUSALS.items():
            assert words in ran[rank]["refused"][what]
            assert "\n" not in ran[rank]["refused"][what]


def test_an_optimizer_that_would_train_otherwise_is_refused():
    pipe = Pipeline([features.linear], 1, 2, device="cpu")
    with pytest.raises(ValueError, match="optimizer: LBFGS needs the loss several times"):
        pipe.train_step(*batch(0), MSE, torch.optim.LBFGS(pipe.parameters()))
    pipe.train_step(*batch(0), MSE)
    with pytest.raises(ValueError, match="optimizer: train_step would clear the gradients"):
        pipe.train_step(*batch(0), MSE, features.sgd(pipe))


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("writes to a view", r"tensor 0 of what enters this stage, which shares memory.*clone\(\)"),
        ("sparse", r"a sparse gradient of shape \(2, \d\) .*sparse=False"),
        ("state in a list", "its outputs are not the same when a micro-batch is recomputed"),
    ],
)
def test_what_ends_all_ranks(what, words):
    with pytest.raises(StageError, match=words):
        launch(features.ends, what, stages=2)


def test_a_throttled_link_takes_what_arithmetic_says_and_is_measured_so(ran):
    """Two messages of 10 kB one after the other, and the gradient of none comes back."""
    seconds, latency, speed = ran[0]["throttled"]
    assert seconds >= 2 * 0.01 + SLOW.latency
    assert latency == pytest.approx(SLOW.latency, rel=0.5)
    assert speed == pytest.approx(SLOW.bytes_per_second, rel=0.2)
