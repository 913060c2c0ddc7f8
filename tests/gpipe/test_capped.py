"""A limit on a GPU's memory, on a stand-in for torch.cuda: who was it that had no more?"""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from repro.gpipe.core import memory

GIB = 2**30
GPU = torch.device("cuda", 0)


def fake(monkeypatch: pytest.MonkeyPatch, *, free: int, reserved: int) -> list[Any]:
    """A GPU of 80 GiB; returns the list that will hold the fractions set."""
    fractions: list[Any] = []
    cuda = SimpleNamespace(
        synchronize=lambda _: None,
        mem_get_info=lambda _: (free, 80 * GIB),
        memory_reserved=lambda _: reserved,
        empty_cache=lambda: None,
        set_per_process_memory_fraction=lambda fraction, _: fractions.append(fraction),
    )
    monkeypatch.setattr(memory.torch, "cuda", cuda)
    return fractions


def run_out() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. 8.00 GiB allowed; Of the allocated memory")


def test_the_limit_itself_is_named(monkeypatch: pytest.MonkeyPatch):
    fractions = fake(monkeypatch, free=70 * GIB, reserved=7 * GIB)
    with (
        pytest.raises(MemoryError, match="8,589,934,592 are allowed") as caught,
        memory.capped(GPU, 8 * GIB),
    ):
        run_out()
    assert memory.over_limit(str(caught.value))
    assert fractions == [0.1, 1.0]


def test_a_gpu_that_others_fill_is_no_result_of_the_limit(monkeypatch: pytest.MonkeyPatch):
    fake(monkeypatch, free=GIB // 2, reserved=7 * GIB)
    with pytest.raises(torch.OutOfMemoryError) as caught, memory.capped(GPU, 8 * GIB):
        run_out()
    assert not memory.over_limit(str(caught.value))


def test_without_a_limit_nothing_is_set(monkeypatch: pytest.MonkeyPatch):
    fractions = fake(monkeypatch, free=GIB, reserved=0)
    with pytest.raises(torch.OutOfMemoryError), memory.capped(GPU, None):
        run_out()
    assert fractions == []
