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


@pytest.mark.parametrize("case", [("20 MiB", "114 GiB"), ("20 MiB", "18 MiB"), ("9 GiB", "7 GiB")])
def test_the_limit_of_a_gpu_is_told_from_what_others_fill(case: tuple[str, str]):
    """In torch's words on an H200; the second case has no room left by others."""
    said = (
        "stage 1, R30 of step 1: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate "
        f"{case[0]}. GPU 0 has a total capacity of 139.80 GiB of which {case[1]} is free."
    )
    rest = " Process 650 has 520.00 MiB memory in use. 16.00 GiB allowed; Of the allocated memory "
    rest += "10.00 GiB is allocated by PyTorch, and 205.44 MiB is reserved by PyTorch but"
    assert memory.over_limit(said + rest) == ("" if case[1] == "18 MiB" else said)
