import pytest

from repro.harness import machine
from repro.harness.machine import Machine


def test_the_cpu_for_small_scales_and_the_gpus_for_others(monkeypatch: pytest.MonkeyPatch):
    assert Machine("cpu", "AMD EPYC 7B13", 2, "gloo", "2.15.0").slug == "amd-epyc-7b13-2c"
    monkeypatch.setattr(machine, "gpus", lambda: ("NVIDIA H200",) * 4)
    monkeypatch.setattr(machine, "cores", lambda: 3)
    assert (machine.detect("laptop").device, machine.detect("laptop").count) == ("cpu", 3)
    # Results without peer-to-peer keep apart.
    for value, slug in {"": "4x-h200", "0": "4x-h200", "1": "4x-h200-p2p-off"}.items():
        monkeypatch.setenv("NCCL_P2P_DISABLE", value)
        here = machine.detect("node")
        assert (here.device, here.count, here.slug) == ("cuda", 4, slug)
        assert here.identity["transport"] == ("nccl-p2p-off" if value == "1" else "nccl")


@pytest.mark.parametrize(
    ("count", "gigabytes", "scale"),
    [(0, 0, "laptop"), (1, 24, "laptop"), (1, 60, "gpu"), (2, 24, "node")],
)
def test_the_default_scale_says_why(monkeypatch, count: int, gigabytes: int, scale: str):
    monkeypatch.setattr(machine, "gpus", lambda: ("NVIDIA H200",) * count)
    monkeypatch.setattr(machine, "gpu_memory", lambda: gigabytes * 10**9)
    chosen, why = machine.default_scale()
    assert chosen == scale
    assert "usable" in why


def test_torchrun_s_ranks_limit_the_devices(monkeypatch: pytest.MonkeyPatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "4", "GLOO_SOCKET_IFNAME": "ib0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(machine, "cpu_name", lambda: "Test CPU")
    for hosts, cores, devices in ((1, 8, 4), (1, 1, 1), (2, 1, 2)):
        monkeypatch.setattr(machine, "cores", lambda cores=cores: cores)
        monkeypatch.setattr(machine, "_hosts", lambda hosts=hosts: hosts)
        here = machine.detect("laptop")
        assert here.count == devices
    # What two hosts measure is never taken for a measurement on one.
    assert here.identity.items() >= {"transport": "gloo", "links": "2 hosts, ib0"}.items()
    assert here.slug == "test-cpu-2c-2-hosts-ib0"
    monkeypatch.setenv("WORLD_SIZE", "1")  # a job of one process starts its own workers
    assert machine.torchrun_rank() is None
