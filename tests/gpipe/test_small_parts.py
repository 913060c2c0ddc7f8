"""Random state, running statistics, live bytes: the pieces below the engine."""

import torch

from repro.gpipe import rng
from repro.gpipe.memory import LiveBytes

CPU = torch.device("cpu")


def test_hash_depends_on_every_number_and_is_stable():
    base = rng.hashed(1, 2, 3, 4)
    assert base == rng.hashed(1, 2, 3, 4) < 2**32
    assert (
        len({base, rng.hashed(0, 2, 3, 4), rng.hashed(1, 0, 3, 4), rng.hashed(1, 2, 0, 4), rng.hashed(1, 2, 3, 0)}) == 5
    )


def test_the_users_generator_is_left_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with rng.preserved(CPU):
        rng.reseed(99, CPU)
        torch.rand(10)
    assert torch.equal(torch.rand(3), expected)


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
