"""What people do that few think of: each works as without a pipeline, or is refused in one line."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from examples import WIDTH, batch, frozen_linear, linear
from torch import nn

from repro.gpipe import Pipeline, launch
from repro.gpipe.comm.message import MessageMeta
from repro.gpipe.core.memory import LiveBytes
from repro.gpipe.core.topology import own_device
from repro.gpipe.runtime.launch import StageError

MSE = nn.functional.mse_loss


class Counting(nn.Module):
    """Passes a constant that changes from call to call."""

    calls = 0

    def forward(self, x: torch.Tensor) -> tuple:
        self.calls += 1
        return x, float(self.calls)


class First(nn.Module):
    """The first member."""

    def forward(self, value: tuple) -> torch.Tensor:
        return value[0] + 0.0


def refusal(**options: Any) -> str:
    """What a rank says."""
    arguments: dict[str, Any] = {"layers": [linear] * 3, "stages": 2} | options
    try:
        Pipeline(**arguments, micro_batches=2, device="cpu").close()
    except ValueError as error:
        return str(error)
    return "accepted"


def disagree() -> list[str]:
    """What is said where ranks disagree: each would otherwise train another model, or hang."""
    rank = dist.get_rank()
    own: list[dict[str, Any]] = [
        {"balance": [[1, 2], [2, 1], [2, 1]][rank]},
        {"transport": ["auto", "gloo", "gloo"][rank]},
        {"checkpoint": ["always", "never", "never"][rank]},
    ]
    said = [refusal(**options) for options in own if rank < 2]
    return [*said, refusal(stages=[3, 2, 3][rank])]


def test_ranks_that_disagree_are_refused_on_each():
    found = launch(disagree, stages=3)
    assert (
        found[0]
        == found[1]
        == [
            "balance=[2, 1] on rank 1, but [1, 2] on rank 0; give every rank the same",
            "transport='gloo' on rank 1, but 'auto' on rank 0; give every rank the same",
            "checkpoint='never' on rank 1, but 'always' on rank 0; give every rank the same",
            *found[2],
        ]
    )
    assert found[2] == ["stages=2 on rank 1, but 3 on rank 0; give every rank the same"]


def constants() -> None:
    pipe = Pipeline([Counting, First, linear], 2, 2, device="cpu", balance=[1, 2])
    for _ in range(3):
        pipe.train_step(*batch(), MSE)


def test_constants_that_change_are_refused():
    words = "outputs of micro-batch 0 changed shape, type or constants"
    with pytest.raises(StageError, match=words):
        launch(constants, stages=2)


def test_a_closed_pipeline_takes_no_step():
    """With gloo it would wait for ever for a thread that has ended."""
    pipe = Pipeline([linear], 1, 2, device="cpu")
    pipe.close()
    pipe.close()
    with pytest.raises(ValueError, match="this Pipeline is closed"):
        pipe.train_step(*batch(), MSE)


class Returns(nn.Module):
    """A layer that was written without its return statement, or nearly so."""

    def __init__(self, value: object) -> None:
        super().__init__()
        self.linear, self.value = linear(), value

    def forward(self, x):
        self.linear(x)
        return self.value


def test_objects_cannot_cross():
    with pytest.raises(ValueError, match="a layer returned a object at a stage boundary"):
        MessageMeta.of((torch.zeros(1), object()))


@pytest.mark.parametrize("value", [None, (), {"x": None}, 5])
def test_a_layer_that_returns_no_tensor_is_one_line(value):
    with pytest.raises(
        ValueError, match=r"a layer returned .* at a stage boundary, which holds no tensor"
    ) as caught:
        MessageMeta.of(value)
    assert "\n" not in str(caught.value)
    pipe = Pipeline([linear, lambda: Returns(value)], 1, 2, device="cpu")
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
        Pipeline([linear, lazy], 1, 2, device="cpu")
    assert "\n" not in str(caught.value)
    pipe = Pipeline([linear, lazy], 1, 2, device="cpu", balance="uniform")
    optimizer = torch.optim.SGD(pipe.parameters(), lr=0.1)
    losses = [pipe.train_step(*batch(), MSE, optimizer).loss for _ in range(2)]
    assert losses[1] < losses[0]


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


@pytest.mark.parametrize("device", ["cuda:9", "meta", 9])
def test_devices_that_are_not_here(device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        ValueError, match=r"device='.*choose 'cpu', for torch can use no GPU"
    ) as caught:
        Pipeline([linear], 1, 2, device=device)
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
        Pipeline([linear], 1, 2, device="cpu", seed=seed)


def test_no_training_in_inference_mode():
    pipe = Pipeline([linear], 1, 2, device="cpu")
    with torch.inference_mode():
        with pytest.raises(ValueError, match="leave that mode"):
            pipe.train_step(*batch(), MSE)
        inside = pipe.evaluate(*batch(), MSE).loss
    assert inside == pipe.evaluate(*batch(), MSE).loss
    assert pipe.train_step(*batch(), MSE).loss == inside


@pytest.mark.parametrize("checkpoint", ["always", "never"])
def test_a_loss_without_a_gradient_trains_nothing_in_silence(checkpoint):
    """As torch's backward refuses it; a micro-batch without one, or a frozen model, is fine."""
    pipe = Pipeline([linear], 1, 2, device="cpu", checkpoint=checkpoint)
    with pytest.raises(ValueError, match=r"no micro-batch's loss has a gradient"):
        pipe.train_step(*batch(), lambda outputs, targets: MSE(outputs, targets).detach())
    x, y = batch()
    y[:5] = 0.0
    pipe.train_step(
        x, y, lambda outputs, targets: MSE(outputs, targets) if targets.any() else torch.zeros(())
    )
    pipe.evaluate(*batch(), MSE)
    assert all(p.grad is not None for p in pipe.parameters())
    Pipeline([frozen_linear], 1, 2, device="cpu", checkpoint=checkpoint).train_step(*batch(), MSE)
