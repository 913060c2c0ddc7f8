"""Live bytes: what counts, when, and for how long."""

import torch

from repro.gpipe.memory import LiveBytes


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
