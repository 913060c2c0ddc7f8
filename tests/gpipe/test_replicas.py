"""D copies of a pipeline train as one with D times the micro-batches."""

from contextlib import contextmanager
from typing import Any

import pytest
import torch
from copies import (
    CASES,
    CHANGES,
    PLAIN,
    STEPS,
    D,
    M,
    all_changes,
    batch,
    changed,
    everything,
    model,
    optimizer_of,
    refused,
    sparse,
)
from torch import nn

from repro.gpipe import Pipeline, launch
from repro.gpipe.core.layers import build
from repro.gpipe.core.loss import Weighted
from repro.gpipe.runtime.launch import StageError

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def ran():
    """What four processes did, rank by rank."""
    return launch(everything, stages=4)


def state(ran, case, K, replica, what="state"):
    """One replica's whole model, with its own names."""
    return {k: v for j in range(K) for k, v in ran[replica * K + j][case, K][what].items()}


def unsplit(case):
    """One model in plain torch on all micro-batches of all replicas: losses and model."""
    name, loss_fn = CASES[case]
    whole = nn.Sequential(*(build(layer, n, 4, CPU) for n, layer in enumerate(model(name))))
    parts = [
        p for d in range(D) for p in zip(*(t.tensor_split(M) for t in batch(name, d)), strict=True)
    ]
    weights = [
        float(loss_fn.weight(y) if isinstance(loss_fn, Weighted) else len(y)) for _, y in parts
    ]

    def mean_loss():
        outputs = [whole(x) for x, _ in parts]
        weighed = [(o, y, w) for o, (_, y), w in zip(outputs, parts, weights, strict=True) if w]
        return torch.stack([loss_fn(o, y) * (w / sum(weights)) for o, y, w in weighed]).sum()

    optimizer = optimizer_of(list(whole.parameters()))
    losses = []
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        with moved_once(whole, step):
            loss = mean_loss()
            loss.backward()
        optimizer.step()
        losses.append(loss.item())
    whole.eval()
    return losses, mean_loss().item(), whole


@contextmanager
def moved_once(whole, step):
    """Let each norm's running statistics move by all that goes into it inside, at once."""
    norms: list[Any] = [m for m in whole.modules() if isinstance(m, nn.BatchNorm1d)]
    seen = {norm: [] for norm in norms}
    before = {norm: (norm.running_mean.clone(), norm.running_var.clone()) for norm in norms}
    hooks = [
        norm.register_forward_pre_hook(lambda _m, args, s=seen[norm]: s.append(args[0].detach()))
        for norm in norms
    ]
    yield
    for norm, hook in zip(norms, hooks, strict=True):
        hook.remove()
        if seen[norm]:
            (mean, var), inputs = before[norm], torch.cat(seen[norm])
            factor = norm.momentum or 1.0 / step
            norm.running_mean.copy_(mean + factor * (inputs.mean(0) - mean))
            norm.running_var.copy_(var + factor * (inputs.var(0) - var))
            norm.num_batches_tracked.fill_(step)


@pytest.mark.parametrize("K", [1, 2])
@pytest.mark.parametrize("case", [case for case in CASES if case != "noisy"])
def test_as_one_model_on_all_examples(ran, case, K):
    """Unequal mini-batches; weights, running statistics, the loss of all and its evaluation."""
    losses, evaluation, whole = unsplit(case)
    for rank in range(K * D):
        assert ran[rank][case, K]["losses"] == pytest.approx(losses, rel=1e-6)
        assert ran[rank][case, K]["evaluation"] == pytest.approx(evaluation, rel=1e-5)
    for replica in range(D):
        found = state(ran, case, K, replica)
        assert found.keys() == whole.state_dict().keys()
        for key, value in whole.state_dict().items():
            torch.testing.assert_close(
                found[key], value, rtol=1e-6, atol=1e-6, msg=lambda m, k=key: f"{k}: {m}"
            )


@pytest.mark.parametrize("K", [1, 2])
def test_as_one_pipeline_with_all_micro_batches(ran, K):
    """Dropout included: a micro-batch draws by its number among those of all replicas."""
    pipe = Pipeline(model("noisy"), 1, D * M, device="cpu", seed=4)
    optimizer = optimizer_of(list(pipe.parameters()))
    whole = [torch.cat(parts) for parts in zip(*(batch("noisy", d) for d in range(D)), strict=True)]
    losses = [pipe.train_step(whole[0], whole[1], PLAIN, optimizer).loss for _ in range(STEPS)]
    assert ran[0]["noisy", K]["losses"] == pytest.approx(losses, rel=1e-6)
    found = state(ran, "noisy", K, 0)
    for key, value in pipe.module.state_dict().items():
        torch.testing.assert_close(found[key], value, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_same_bits_on_every_replica_and_for_every_k(ran, case):
    expected = state(ran, case, 1, 0)
    for K in (1, 2):
        for replica in range(D):
            found = state(ran, case, K, replica)
            assert [key for key in expected if not torch.equal(found[key], expected[key])] == [], (
                K,
                replica,
            )
    assert len({tuple(ran[rank][case, 2]["losses"]) for rank in range(4)}) == 1


def test_same_bits_for_every_checkpoint_mode(ran):
    for rank in range(D):
        always, never = ran[rank]["noisy", 1], ran[rank]["noisy", "never"]
        assert always["losses"] == never["losses"]
        assert all(
            torch.equal(never["state"][key], value) for key, value in always["state"].items()
        )


def test_only_what_some_replica_used_is_trained(ran):
    """Weight decay shows whether a gradient is missing (third branch) or zero (dead one)."""
    found, initial = (
        state(ran, "branches", 1, 1),
        build(model("branches")[0], 0, 4, CPU).state_dict(),
    )
    changed = {key for key, value in initial.items() if not torch.equal(found[f"0.{key}"], value)}
    assert changed == {key for key in initial if not key.startswith("third")}


@pytest.mark.parametrize("K", [1, 2])
def test_gradients_add_up_without_an_optimizer(ran, K):
    """Two steps' over all replicas, on top of what was there."""
    whole = nn.Sequential(*(build(layer, n, 4, CPU) for n, layer in enumerate(model("plain"))))
    x, y = (torch.cat(parts) for parts in zip(*(batch("plain", d) for d in range(D)), strict=True))
    names, parameters = zip(*whole.named_parameters(), strict=True)
    gradients = dict(zip(names, torch.autograd.grad(PLAIN(whole(x), y), parameters), strict=True))
    for replica in range(D):
        found = {k: v for j in range(K) for k, v in ran[replica * K + j]["accumulated", K].items()}
        for key, gradient in gradients.items():
            torch.testing.assert_close(found[key], 1.0 + 2.0 * gradient, rtol=1e-5, atol=1e-6)


def test_buckets_are_summed_while_the_last_backward_runs(ran):
    """Last layers first, the same order on both replicas; large buckets change no gradient."""
    events, gradients = ran[0]["bucketed", 1]
    assert events == ran[1]["bucketed", 1][0]
    ends = [n for n, event in enumerate(events) if event == "B ends"]
    sums = [
        n
        for n, event in enumerate(events)
        if isinstance(event, int) and n > events.index("B begins")
    ]
    during = [n for n in sums if ends[-2] < n < ends[-1]]
    assert len(ends) == M
    assert not [n for n in sums if n < ends[-2]], "no gradient is final before the last backward"
    assert len(during) >= 3, "one for each layer at least"
    whole = {k: v for j in range(2) for k, v in ran[j]["bucketed", 2][1].items()}
    assert gradients.keys() == whole.keys()
    assert all(torch.equal(gradients[key], whole[key]) for key in whole)


@pytest.fixture(scope="module")
def changed_on_replicas():
    """What two replicas did whose parameters changed."""
    return launch(all_changes, stages=D)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("case", CHANGES)
def test_parameters_that_are_new_are_summed_too(changed_on_replicas, case, late):
    """Also parameters that weight norm, pruning or the user replaced after the build."""
    losses, weights = changed(case, 1, late=late)
    first, second = (found[case, late] for found in changed_on_replicas)
    assert first[0] == second[0]
    assert first[0] == pytest.approx(losses, rel=1e-5)
    assert weights.keys() == first[1].keys()
    for key, value in weights.items():
        assert torch.equal(first[1][key], second[1][key]), key
        torch.testing.assert_close(first[1][key], value, rtol=1e-5, atol=1e-6)


def test_wrong_weights_on_one_replica_end_all():
    with pytest.raises(
        StageError, match=r"replica [01], stage 0, .* ValueError: loss_fn: its micro-batches weigh"
    ):
        launch(refused, stages=D)


def test_sparse_gradients_are_refused():
    with pytest.raises(StageError, match=r"a sparse gradient of shape \(2, \d\) .*sparse=False"):
        launch(sparse, stages=D)
