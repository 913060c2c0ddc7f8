"""Live bytes: what counts, when, and for how long."""

import pytest
import torch
from torch import nn

from repro.gpipe import Pipeline
from repro.gpipe.core.memory import LiveBytes


def test_live_bytes_sees_peaks_and_frees():
    kept = torch.zeros(256)
    with LiveBytes([kept]) as meter:
        assert meter.now == 1024
        a = torch.ones(1024)
        view = a[:10]
        assert meter.now == 1024 + 4096, "a view owns nothing"
        del a
        assert meter.now == 1024 + 4096, "but keeps its storage alive"
        del view
        assert meter.now == 1024
        torch.ones(256)
    assert meter.peak == 1024 + 4096


def test_more_than_the_limit_is_a_memory_error():
    kept = torch.zeros(256)
    with LiveBytes([kept], limit=2048) as meter:
        torch.zeros(256)
        with pytest.raises(MemoryError, match="5,120 bytes of tensors at once, 2,048 are allowed"):
            torch.ones(1024)
    assert meter.peak == 5120
    with pytest.raises(MemoryError):
        LiveBytes([kept], limit=1000)


def test_a_pipeline_within_a_limit():
    layers = [nn.Linear(64, 64) for _ in range(4)]
    x = torch.randn(32, 64)
    pipe = Pipeline(layers, stages=1, micro_batches=1, checkpoint="never")
    for _ in range(2):  # gradients are there from the second step on
        (peak,) = pipe.measure_memory(x, x, nn.functional.mse_loss)
    assert pipe.measure_memory(x, x, nn.functional.mse_loss, limit=peak) == [peak]
    with pytest.raises(MemoryError, match=f"{peak - 1:,} are allowed"):
        pipe.measure_memory(x, x, nn.functional.mse_loss, limit=peak - 1)
