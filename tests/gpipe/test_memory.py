"""Live bytes of a step, a limit on them, and on a GPU's memory."""

import pytest
import torch
from torch import nn

from repro.gpipe import Pipeline
from repro.gpipe.core import memory


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


@pytest.mark.parametrize(("free", "by_limit"), [("114.03 GiB", True), ("18.50 MiB", False)])
def test_the_limit_of_a_gpu_is_told_from_what_others_fill(free: str, by_limit: bool):
    """In torch's words on an H200, where a stage might take 7.45 GiB."""
    said = (
        "stage 1, R30 of step 1: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate "
        f"20.00 MiB. GPU 0 has a total capacity of 139.80 GiB of which {free} is free."
    )
    rest = " Process 650 has 520.00 MiB memory in use. 7.45 GiB allowed; Of the allocated"
    assert memory.over_limit(said + rest) == (said if by_limit else "")
