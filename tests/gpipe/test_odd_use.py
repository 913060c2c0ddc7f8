"""What people do that few think of: each works as without a pipeline, or is refused in one line."""

import pytest
import torch
from scenarios import WIDTH, batch, constants, frozen_head, head, odd, other_stages
from torch import nn

from repro.gpipe import Pipeline, launch
from repro.gpipe.core.memory import LiveBytes
from repro.gpipe.core.topology import own_device
from repro.gpipe.runtime.launch import StageError

MSE = nn.functional.mse_loss


@pytest.fixture(scope="module")
def ran():
    return launch(odd, stages=2)


def test_strided_inputs_train_as_dense_ones(ran):
    assert ran[0]["strides"] == ran[0]["dense"]


def test_an_unfrozen_stage_trains(ran):
    pipe = Pipeline([frozen_head, head], 1, 2, device="cpu")
    optimizer = torch.optim.SGD(pipe.parameters(), lr=0.1)
    losses = []
    for step in range(3):
        if step == 1:
            pipe.module.requires_grad_(True)
        losses.append(pipe.train_step(*batch(), MSE, optimizer).loss)
    assert ran[0]["thaw"] == losses


def test_constants_that_change_are_refused():
    with pytest.raises(
        StageError, match="outputs of micro-batch 0 changed shape, type or constants"
    ):
        launch(constants, stages=2)


def test_a_fresh_mask_teaches_nothing_new(ran):
    known, losses = ran[0]["masks"]
    assert known == 1
    assert losses[0] != losses[1]


def test_factories_that_hand_out_one_module_share_its_parameters(ran):
    assert all("shared by stages 0 and 1" in r["shared"] for r in ran)


class Returns(nn.Module):
    """A layer that was written without its return statement, or nearly so."""

    def __init__(self, value: object) -> None:
        super().__init__()
        self.linear, self.value = head(), value

    def forward(self, x):
        self.linear(x)
        return self.value


@pytest.mark.parametrize("value", [None, (), {"x": None}, 5])
def test_a_layer_that_returns_no_tensor_is_one_line(value):
    from repro.gpipe.comm.message import MessageMeta

    with pytest.raises(
        ValueError, match=r"a layer returned .* at a stage boundary, which holds no tensor"
    ) as caught:
        MessageMeta.of(value)
    assert "\n" not in str(caught.value)
    pipe = Pipeline([head, lambda: Returns(value)], 1, 2, device="cpu")
    for call in (pipe.train_step, pipe.evaluate):
        with pytest.raises(
            ValueError, match=r"the last layer returned .*, which holds no tensor"
        ) as caught:
            call(*batch(), MSE)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("lazy", [nn.LazyLinear(WIDTH), lambda: nn.LazyLinear(WIDTH)])
def test_lazy_layers_cannot_be_counted_and_train_where_they_need_not_be(lazy):
    with pytest.raises(
        ValueError, match=r"layers\[1\].weight: has no shape before .*balance='uniform'"
    ) as caught:
        Pipeline([head, lazy], 1, 2, device="cpu")
    assert "\n" not in str(caught.value)
    pipe = Pipeline([head, lazy], 1, 2, device="cpu", balance="uniform")
    optimizer = torch.optim.SGD(pipe.parameters(), lr=0.1)
    losses = [pipe.train_step(*batch(), MSE, optimizer).loss for _ in range(2)]
    assert losses[1] < losses[0]


class Odd(nn.Module):
    """Returns an object that cannot cross a boundary."""

    def forward(self, x):
        return x, object()


def test_objects_cannot_cross():
    from repro.gpipe.comm.message import MessageMeta

    with pytest.raises(ValueError, match="a layer returned a object at a stage boundary"):
        MessageMeta.of(Odd()(torch.zeros(1)))


@pytest.mark.parametrize("checkpoint", ["always", "never"])
def test_a_loss_with_dropout_is_the_same_in_f_and_r(checkpoint):
    """And the user's generator is left where it was."""
    state = torch.get_rng_state()

    def loss(outputs, targets):
        return MSE(nn.functional.dropout(outputs, 0.5), targets)

    pipe = Pipeline([head], 1, 2, device="cpu", checkpoint=checkpoint, seed=3)
    result = pipe.train_step(*batch(), loss)
    assert torch.equal(torch.get_rng_state(), state)
    expected = Pipeline([head], 1, 2, device="cpu", checkpoint="never", seed=3)
    assert result.loss == expected.train_step(*batch(), loss).loss
    for ours, theirs in zip(pipe.parameters(), expected.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)  # pyright: ignore[reportArgumentType]


def test_a_slice_of_a_data_set_counts_as_itself():
    data = torch.zeros(1000, WIDTH)
    with LiveBytes([data[:10]]) as meter:
        torch.mul(data[:10], 1.0)
    assert meter.peak == 2 * 10 * WIDTH * 4


def test_peak_memory_by_hand():
    """Weights and gradients of two layers, the batch, and what a micro-batch keeps."""
    pipe = Pipeline(
        [lambda: nn.Linear(100, 100, bias=False)] * 2, 1, 1, device="cpu", checkpoint="never"
    )
    x, y = torch.zeros(50, 100), torch.zeros(50, 100)
    pipe.train_step(x, y, MSE)
    (peak,) = pipe.measure_memory(x, y, MSE)
    weights, batch_bytes = 2 * 100 * 100 * 4, 50 * 100 * 4
    # with gradients from the step before, inputs and targets
    resident = 2 * weights + 2 * batch_bytes
    # The first layer's own copy of the inputs. In backward of the last layer: its input, the
    # gradients of its output and input, and its fresh weight gradient; beside them a few numbers of
    # four bytes, the loss and its weight among them.
    expected = resident + 4 * batch_bytes + weights // 2
    assert expected <= peak <= expected + 64


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ([torch.relu], r"layers\[0\]: relu needs arguments"),
        (
            [nn.Linear],
            r"layers\[0\]: Linear needs arguments, and a factory gets none; write lambda: Linear",
        ),
        ([lambda: None], r"layers\[0\]: the factory returned NoneType"),
        (nn.Sequential(), "sequence of modules or factories, found"),
        (nn.ModuleDict(), "sequence of modules or factories, found ModuleDict"),
    ],
)
def test_no_layers(layers, words):
    with pytest.raises(ValueError, match=words) as caught:
        Pipeline(layers, 1, 2, device="cpu")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("device", ["cuda", "cuda:9", "meta", "gpu", "mps", 9])
def test_devices_that_are_not_here(device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        ValueError, match=r"device='.*choose 'cpu', for torch can use no GPU"
    ) as caught:
        Pipeline([head], 1, 2, device=device)
    assert "\n" not in str(caught.value)


def test_a_gpu_without_a_number_is_one_of_this_host_in_turn(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    found = [own_device(device, 3) for device in ("cuda", None, "cuda:0", "cpu")]
    assert [str(d) for d in found] == ["cuda:1", "cuda:1", "cuda:0", "cpu"]
    with pytest.raises(
        ValueError, match=r"device='cuda:2': choose 'cuda' or 'cuda:0' to 'cuda:1', or 'cpu'"
    ):
        own_device("cuda:2", 0)
    monkeypatch.setenv("LOCAL_RANK", "0")  # rank 3 is the first of the second host
    assert str(own_device(None, 3)) == "cuda:0"


@pytest.mark.parametrize("seed", [None, 1.5, "1", 2**63])
def test_a_seed_is_a_whole_number(seed):
    with pytest.raises(ValueError, match=r"seed=.*whole number"):
        Pipeline([head], 1, 2, device="cpu", seed=seed)


def test_no_training_in_inference_mode():
    pipe = Pipeline([head], 1, 2, device="cpu")
    with torch.inference_mode():
        with pytest.raises(ValueError, match="leave that mode"):
            pipe.train_step(*batch(), MSE)
        inside = pipe.evaluate(*batch(), MSE).loss
    assert inside == pipe.evaluate(*batch(), MSE).loss
    assert pipe.train_step(*batch(), MSE).loss == inside


@pytest.mark.parametrize("checkpoint", ["always", "never"])
def test_a_loss_without_a_gradient_trains_nothing_in_silence(checkpoint):
    """As torch's backward refuses it; a micro-batch without one, or a frozen model, is fine."""
    pipe = Pipeline([head], 1, 2, device="cpu", checkpoint=checkpoint)
    with pytest.raises(ValueError, match=r"no micro-batch's loss has a gradient"):
        pipe.train_step(*batch(), lambda outputs, targets: MSE(outputs, targets).detach())
    x, y = batch()
    y[:5] = 0.0
    pipe.train_step(
        x, y, lambda outputs, targets: MSE(outputs, targets) if targets.any() else torch.zeros(())
    )
    pipe.evaluate(*batch(), MSE)
    assert all(p.grad is not None for p in pipe.parameters())
    Pipeline([frozen_head], 1, 2, device="cpu", checkpoint=checkpoint).train_step(*batch(), MSE)


def test_a_closed_pipeline_takes_no_step(ran):
    """With gloo it would wait for ever for a thread that has ended."""
    assert all("this Pipeline is closed" in r["closed"] for r in ran)


def test_ranks_that_disagree_are_refused_on_each(ran):
    assert ran[0]["unlike"] == ran[1]["unlike"]
    assert ran[0]["unlike"] == [
        "balance=[2, 1] on rank 1, but [1, 2] on rank 0; give every rank the same",
        "transport='gloo' on rank 1, but 'auto' on rank 0; give every rank the same",
        "checkpoint='never' on rank 1, but 'always' on rank 0; give every rank the same",
    ]


def test_ranks_that_disagree_about_the_stages_are_refused():
    said = launch(other_stages, [3, 2, 3], stages=3)
    assert said == ["stages=2 on rank 1, but 3 on rank 0; give every rank the same"] * 3
    said = launch(other_stages, [2, 1], stages=2)
    assert said == ["rank 1 ended, and never built the Pipeline that stage 0 waits for", "accepted"]


@pytest.mark.parametrize(
    "change", [{"stages": "1"}, {"micro_batches": 2.0}, {"balance": 5}, {"balance": [1.0]}]
)
def test_wrong_types(change):
    with pytest.raises(ValueError, match=r"whole number|balance=") as caught:
        Pipeline(**({"layers": [head], "stages": 1, "micro_batches": 2, "device": "cpu"} | change))
    assert "\n" not in str(caught.value)


def test_a_module_list_is_a_sequence_of_layers():
    pipe = Pipeline(nn.ModuleList([head(), head()]), 1, 2, device="cpu")  # pyright: ignore[reportArgumentType]
    assert pipe.balance == (2,)


@pytest.mark.parametrize("checkpoint", ["always", "never"])
def test_inputs_that_require_a_gradient_get_it(checkpoint):
    x, y = batch()
    plain = x.clone().requires_grad_()
    pipe = Pipeline([head], 1, 4, device="cpu", checkpoint=checkpoint)
    pipe.train_step(x, y, MSE)  # what this taught does not hold for the next one
    x.requires_grad_()
    pipe.train_step(x, y, MSE)
    MSE(pipe.module(plain), y).backward()
    torch.testing.assert_close(x.grad, plain.grad)
