"""The micro-benchmarks: what they count, and that two processes run them together."""

import pytest

from repro.costs import bench
from repro.gpipe import launch

pytestmark = pytest.mark.filterwarnings("default")  # torch's own, about its process groups


def test_two_processes_measure_every_term():
    found = launch(bench.measure, "cpu", 0.001, stages=2)
    assert len(found) == 2
    for rates in found:
        assert min(rates.matmul.values()) <= rates.matmul_flops <= max(rates.matmul.values())
        assert {"relu", "batch norm"} <= rates.other.keys()
        assert rates.other_flops > 1e6
        assert 1e7 < rates.bytes_per_second < 1e13
        assert 1e-8 < rates.launch_s < 1e-2
    assert found[0].link.bytes_per_second < float("inf")
    assert found[1].link.bytes_per_second == float("inf")  # the last has none
