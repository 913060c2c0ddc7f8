"""The pipeline against the unsplit model, over K, M, checkpoint mode and schedule."""

from itertools import accumulate

import pytest
import torch
from scenarios import CASES, STEPS, N, batch, everything, fail, head, nested
from torch import nn

from repro.gpipe import Pipeline, launch
from repro.gpipe.core.layers import build
from repro.gpipe.core.microbatch import sizes
from repro.gpipe.runtime.launch import StageError


@pytest.fixture(scope="module")
def ran():
    """Everything that three stage processes did, rank by rank."""
    return launch(everything, stages=3)


def merged(ran, key, what):
    """One stage-wise dictionary of a case over its ranks."""
    return {name: value for rank in range(key[-1]) for name, value in ran[rank][key][what].items()}


def reference(micro_batches):
    """The unsplit model, given the same micro-batches by hand."""
    model = nn.Sequential(
        *(build(layer, n, 7, torch.device("cpu")) for n, layer in enumerate(nested()))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        total = 0.0
        cuts = sizes(N, micro_batches)
        for x, y in reversed(list(zip(*(t.split(cuts) for t in batch()), strict=True))):
            loss = nn.functional.mse_loss(model(x), y) * (len(x) / N)
            loss.backward()
            total += loss.item()
        optimizer.step()
        losses.append(total)
    return model, losses


@pytest.mark.parametrize("K", [1, 2, 3])
@pytest.mark.parametrize("M", [1, 4])
def test_equals_the_unsplit_model(ran, K, M):
    model, losses = reference(M)
    key = ("nested", "gpipe", "always", M, K)
    assert ran[0][key]["loss"] == pytest.approx(losses, rel=1e-6)
    weights, gradients = merged(ran, key, "weights"), merged(ran, key, "gradients")
    assert weights.keys() == model.state_dict().keys()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(weights[name], parameter.detach(), rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-5, atol=1e-7)


def test_micro_batches_add_up_to_the_mini_batch(ran):
    """M = 4 unequal parts give the gradients of M = 1, up to rounding."""
    one, four = (merged(ran, ("nested", "gpipe", "always", M, 1), "gradients") for M in (1, 4))
    for name in one:
        torch.testing.assert_close(one[name], four[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("model", ["nested", "noisy"])
@pytest.mark.parametrize(("schedule", "checkpoint", "M"), CASES)
def test_same_bits_for_every_k_and_checkpoint(ran, model, schedule, checkpoint, M):
    """The reference is the same order of backwards on one device without recompute."""
    family = "1f1b" if schedule == "1f1b" else "gpipe"
    expected = merged(ran, (model, family, "never", M, 1), "weights")
    for K in (1, 2, 3):
        weights = merged(ran, (model, schedule, checkpoint, M, K), "weights")
        assert weights.keys() == expected.keys()
        for name in expected:
            assert torch.equal(weights[name], expected[name]), (K, name)


def test_results_are_on_every_rank(ran):
    key = ("noisy", "gpipe", "always", 4, 3)
    assert ran[0][key]["loss"] == ran[1][key]["loss"] == ran[2][key]["loss"]
    assert ran[0][key]["evaluation"].loss == ran[2][key]["evaluation"].loss
    assert ran[0][key]["evaluation"].outputs is None
    assert ran[2][key]["evaluation"].outputs.shape == batch()[1].shape


def test_evaluation_uses_evaluation_mode_and_restores(ran):
    one = ran[0]["noisy", "gpipe", "always", 4, 1]["evaluation"]
    three = ran[2]["noisy", "gpipe", "always", 4, 3]["evaluation"]
    assert torch.equal(one.outputs, three.outputs)
    assert one.loss == three.loss
    pipe = Pipeline([nn.Linear(6, 6), nn.Dropout()], 1, 2, device="cpu")
    pipe.evaluate(*batch(), nn.functional.mse_loss)
    assert all(m.training for m in pipe.module.modules())
    assert all(p.grad is None for p in pipe.parameters())


def test_timeline_has_every_span_in_schedule_order(ran):
    timeline = ran[0]["nested", "gpipe", "always", 4, 3]["timeline"]
    assert timeline == ran[2]["nested", "gpipe", "always", 4, 3]["timeline"]
    for j in range(3):
        kinds = [f"{s.kind}{s.micro_batch}" for s in timeline.on(j) if s.kind in "FRB"]
        assert kinds == "F0 F1 F2 F3 R3 B3 R2 B2 R1 B1 R0 B0".split()
        assert [s.kind for s in timeline.on(j)][-1] == "U"
    forwards = {(s.stage, s.micro_batch): s for s in timeline.spans if s.kind == "F"}
    backwards = {(s.stage, s.micro_batch): s for s in timeline.spans if s.kind == "B"}
    for j, i in forwards:
        if j:
            assert forwards[j, i].start >= forwards[j - 1, i].end
            assert backwards[j - 1, i].start >= backwards[j, i].end
    assert 0 < timeline.bubble_over_total < 1


@pytest.mark.parametrize("checkpoint", ["always", "never"])
@pytest.mark.parametrize("K", [1, 2, 3])
@pytest.mark.parametrize("M", [1, 4])
def test_1f1b_has_few_micro_batches_between_f_and_b(ran, K, M, checkpoint):
    """At most min(K - j, M) on stage j, as executed; with GPipe's schedule all M."""
    for schedule, most in (("1f1b", lambda j: min(K - j, M)), ("gpipe", lambda j: M)):
        timeline = ran[0]["nested", schedule, checkpoint, M, K]["timeline"]
        for j in range(K):
            spans = [s for s in timeline.on(j) if s.kind in "FB"]
            changes = accumulate(1 if span.kind == "F" else -1 for span in spans)
            assert max(changes) == most(j)


def test_recompute_saves_memory_on_every_stage(ran):
    peaks = ran[0]["memory"]
    assert peaks == ran[1]["memory"] == ran[2]["memory"]
    assert all(a < 0.75 * n for a, n in zip(peaks["always"], peaks["never"], strict=True))
    parameters = 8 * (64 * 64 + 64) * 4
    boundary = 512 * 64 * 4
    assert all(p > 2 * parameters + boundary for p in peaks["always"]), (
        "weights, gradients and kept inputs at least"
    )


def test_whole_members(ran):
    assert ran[0]["whole"] == ran[2]["whole"] > 0


def test_balance_by_time_agrees_and_is_sensible(ran):
    balance, imbalance = ran[0]["time"]
    assert ran[1]["time"] == ran[2]["time"] == (balance, imbalance)
    assert balance in ((2, 1, 1), (1, 1, 2)), (
        "the two heavy layers in the middle on stages of their own"
    )
    assert imbalance >= 0


def test_refused_inputs_reach_every_rank(ran):
    assert "micro_batches=4: the mini-batch has only 3 examples" in ran[0]["refused"]
    assert all(ran[rank]["refused"] == ran[0]["refused"] for rank in (1, 2))


def test_clocks_of_two_hosts_are_aligned(ran):
    """A stage whose clock is 1000 s behind finds that out, to within the time of one exchange."""
    assert ran[0]["clock"] == 0.0
    assert ran[1]["clock"] == pytest.approx(1000.0, abs=0.05)


def test_a_failing_stage_is_named_with_its_traceback():
    """The stage that raised, not the neighbours that lost their connection a moment later."""
    with pytest.raises(
        StageError,
        match=r"(?s)rank 1, before its first step: RuntimeError: stage 1 cannot\n"
        "Traceback.*in fail",
    ):
        launch(fail, 1, stages=2)


def test_gradients_without_an_optimizer_accumulate():
    pipe = Pipeline([head, head], 1, 2, device="cpu")
    pipe.train_step(*batch(), nn.functional.mse_loss)
    once = [p.grad.clone() for p in pipe.parameters() if p.grad is not None]
    pipe.train_step(*batch(), nn.functional.mse_loss)
    for p, g in zip(pipe.parameters(), once, strict=True):
        torch.testing.assert_close(p.grad, 2 * g)


def test_new_shapes_are_learnt_again():
    pipe = Pipeline([head, head], 1, 2, device="cpu")
    x, y = batch()
    losses = [pipe.train_step(x[:n], y[:n], nn.functional.mse_loss).loss for n in (10, 7, 10)]
    assert losses[0] == losses[2] != losses[1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"stages": 2}, "only 1 process"),
        ({"balance": "tim"}, "did you mean 'time'"),
        ({"balance": "time"}, "needs sample="),
        ({"balance": [1, 1]}, r"needs 1 positive numbers that sum to the model's 2 layers"),
        ({"checkpoint": "alway"}, "did you mean 'always'"),
        ({"schedule": "1b1f"}, "choose one of gpipe"),
        ({"micro_batches": 0}, "at least 1"),
        ({"layers": 3}, "sequence of modules or factories"),
    ],
)
def test_one_line_for_a_wrong_argument(change, words):
    arguments = {"layers": [head, head], "stages": 1, "micro_batches": 2, "device": "cpu"} | change
    with pytest.raises(ValueError, match=words) as caught:
        Pipeline(**arguments)
    assert "\n" not in str(caught.value)


def test_targets_of_another_size():
    pipe = Pipeline([head], 1, 2, device="cpu")
    x, y = batch()
    with pytest.raises(ValueError, match="targets: 9 examples, but the inputs have 10"):
        pipe.train_step(x, y[:9], nn.functional.mse_loss)


def test_a_loss_that_is_no_number():
    pipe = Pipeline([head], 1, 2, device="cpu")
    x, y = batch()
    with pytest.raises(ValueError, match=r"loss_fn: returned \(5, 6\), needed is one number"):
        pipe.train_step(x, y, lambda outputs, targets: (outputs - targets) ** 2)


def test_a_step_that_failed_taught_nothing():
    """An in-place first layer is found in the first good step, so R sees unspoilt inputs."""
    layers = [lambda: nn.LeakyReLU(0.1, inplace=True), head]
    x, y = batch()
    expected = Pipeline(layers, 1, 2, device="cpu", checkpoint="never")
    expected.train_step(x.clone(), y, nn.functional.mse_loss)
    pipe = Pipeline(layers, 1, 2, device="cpu")

    def broken(outputs, targets):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        pipe.train_step(x, y, broken)
    pipe.train_step(x, y, nn.functional.mse_loss)
    for ours, theirs in zip(pipe.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
