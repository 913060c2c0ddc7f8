"""Loss scaling over all stages, against torch.amp.GradScaler on the unsplit model."""

import pytest
import torch
from scaling import LOOPS, LOSS, OPTIONS, D, N, batch, everything, model, optimizer_of
from torch import nn

from repro.gpipe import NonFiniteError, Pipeline, launch


@pytest.fixture(scope="module")
def ran():
    return launch(everything, stages=4)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(("K", "copies"), [(1, 1), (2, 1), (3, 1), (2, D)])
def test_equals_plain_pytorch(ran, K, copies, before, loop):
    plain = ran[0][copies, before, loop]
    skipped = [
        b < a
        for a, b in zip([OPTIONS["init_scale"], *plain["scales"]], plain["scales"], strict=False)
    ]
    assert any(skipped)
    assert not all(skipped)
    for rank in range(K * copies):
        found = ran[rank][K, copies, before, loop]
        assert found["scales"] == plain["scales"], rank
        assert found["losses"] == pytest.approx(plain["losses"], rel=1e-5)
        for name, value in found["state"].items():
            torch.testing.assert_close(value, plain["state"][name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("before", [True, False])
def test_inf_on_one_stage_skips_all(ran, before):
    """The test above would show nothing if every stage had found inf by itself."""
    zero, one = (ran[rank][2, 1, before, LOOPS[1]]["overflowed"] for rank in (0, 1))
    alone = [a and not b if before else b and not a for a, b in zip(zero, one, strict=True)]
    assert any(alone)


def test_a_rank_that_forgets_to_update_is_named_on_all(ran):
    for rank in (0, 1):
        assert "scaler: the scale is" in ran[rank]["forgotten"]
        assert "on rank 1" in ran[rank]["forgotten"]


def test_torch_s_own_scaler_is_refused():
    pipe = Pipeline(model(True), 1, 2, device="cpu")
    with pytest.raises(ValueError, match=r"scaler: GradScaler .* make it by pipe\.grad_scaler\(\)"):
        pipe.train_step(*batch(0), LOSS, scaler=torch.amp.GradScaler("cpu"))  # pyright: ignore[reportArgumentType]


def test_a_scaler_that_is_disabled_changes_nothing():
    """Non-finite steps are refused again."""
    results = []
    for enabled in (False, None):
        pipe = Pipeline(model(True), 1, 2, device="cpu")
        optimizer = optimizer_of(list(pipe.parameters()))
        scaler = None if enabled is None else pipe.grad_scaler(enabled=enabled)
        pipe.train_step(*batch(0), LOSS, optimizer, scaler=scaler)
        results.append(pipe.module.state_dict())
        with pytest.raises(NonFiniteError):
            pipe.train_step(
                torch.full((N, 6), torch.inf), None, lambda o, _t: o.sum(), optimizer, scaler=scaler
            )
    assert all(torch.equal(value, results[1][name]) for name, value in results[0].items())


def test_its_state_survives_json_and_a_frozen_stage_updates_it():
    pipe = Pipeline([nn.Linear(2, 2), nn.Linear(2, 2)], 1, 1, device="cpu")
    scaler = pipe.grad_scaler(init_scale=8.0, growth_interval=1)
    pipe.module.requires_grad_(False)
    inputs = torch.ones(2, 2, requires_grad=True)
    optimizer = torch.optim.SGD([{"params": list(pipe.parameters())}], lr=0.1)
    pipe.train_step(inputs, None, lambda outputs, _t: outputs.sum(), optimizer, scaler=scaler)
    assert scaler.get_scale() == 16.0
    other = pipe.grad_scaler()
    other.load_state_dict(scaler.state_dict())
    assert other.state_dict() == scaler.state_dict()
