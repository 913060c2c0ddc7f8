"""Live bytes of a step, a limit on them, and on a GPU's memory."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from repro.gpipe import Pipeline
from repro.gpipe.core import memory

GIB = 2**30
GPU = torch.device("cuda", 0)


def test_peak_memory_by_hand_and_a_limit():
    """Weights and gradients of two layers, the batch, and what a micro-batch keeps."""
    layers = [lambda: nn.Linear(100, 100, bias=False)] * 2
    pipe = Pipeline(layers, 1, 1, device="cpu", checkpoint="never")
    data = torch.zeros(50, 100), torch.zeros(50, 100), nn.functional.mse_loss
    pipe.train_step(*data)
    (peak,) = pipe.measure_memory(*data)
    weights, batch_bytes = 2 * 100 * 100 * 4, 50 * 100 * 4
    # with gradients from the step before, inputs and targets
    resident = 2 * weights + 2 * batch_bytes
    # The first layer's own copy of the inputs. In backward of the last layer: its input, the
    # gradients of its output and input, and its fresh weight gradient; beside them a few numbers of
    # four bytes, the loss and its weight among them.
    expected = resident + 4 * batch_bytes + weights // 2
    assert expected <= peak <= expected + 64
    assert pipe.measure_memory(*data, limit=peak) == [peak]
    with pytest.raises(MemoryError, match=f"{peak - 1:,} are allowed"):
        pipe.measure_memory(*data, limit=peak - 1)


def run_out_on_a_gpu(monkeypatch: pytest.MonkeyPatch, *, free: int, reserved: int) -> None:
    """Within a limit of 8 of 80 GiB."""
    cuda = SimpleNamespace(
        synchronize=lambda _: None,
        mem_get_info=lambda _: (free, 80 * GIB),
        memory_reserved=lambda _: reserved,
        empty_cache=lambda: None,
        set_per_process_memory_fraction=lambda _fraction, _: None,
    )
    monkeypatch.setattr(memory.torch, "cuda", cuda)
    with memory.capped(GPU, 8 * GIB):
        raise torch.OutOfMemoryError("CUDA out of memory. 8.00 GiB allowed; Of the allocated")


def test_the_limit_of_a_gpu_is_told_from_what_others_fill(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(MemoryError, match="8,589,934,592 are allowed") as caught:
        run_out_on_a_gpu(monkeypatch, free=70 * GIB, reserved=7 * GIB)
    assert memory.over_limit(str(caught.value))
    with pytest.raises(torch.OutOfMemoryError) as filled:
        run_out_on_a_gpu(monkeypatch, free=GIB // 2, reserved=7 * GIB)
    assert not memory.over_limit(str(filled.value))
