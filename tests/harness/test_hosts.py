"""The same experiment over two hosts, K = 4 over both; and a link that is cut in the middle of a
step."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hosts import Host, two
from leftovers import until

from repro.harness.frame import all_runs
from repro.harness.results import load

# Twelve processes that import torch, six of them after the others.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]
HERE = Path(__file__).parent


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Host, Host]]:
    monkeypatch.setenv("PYTHONPATH", f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    with two(tmp_path) as both:
        yield both


def test_a_sweep_goes_on_with_fresh_workers_on_both(hosts, tmp_path: Path):
    options = ["--scale", "smoke", "--wandb", "disabled", "--results", str(tmp_path / "results")]
    for host in hosts:
        host.torchrun(["-m", "repro", "run", str(HERE / "two_hosts.py"), *options])
    until(lambda: all(host.agent.poll() is not None for host in hosts), 180)
    rows = all_runs(load(tmp_path / "results"))
    assert rows["status"].tolist() == [
        "done",
        "failed(stage 1, F0 of step 0: RuntimeError: layer two is broken (in layers[1], a _Goes))",
        "done",
    ]
    # (M+K-1)F + M(R+B) + (K-1)B at least: the clocks of both hosts are one.
    assert 0.12 <= rows.loc[0, "step_s"] < 5
    assert "layer two is broken" in hosts[0].log.read_text()


def test_a_link_cut_in_a_step_ends_all_stages_on_both(hosts, tmp_path: Path):
    when = tmp_path / "when"
    for host in hosts:  # the first one's agent holds the store
        host.torchrun([str(HERE.parent / "gpipe" / "failing.py"), "endless", str(when)])
    until(when.exists, 100)
    hosts[1].cut()
    left = [host for host in hosts if host.apart or host is hosts[0]]
    assert all(host.has_ranks() for host in left)
    took = until(lambda: not any(host.has_ranks() for host in left), 60)
    assert took < 10
    # Once one has left, torchrun may end the other one of its host before that says anything.
    named = r"stage [01]: leaving, because stage [23], .* when last heard of: "
    assert re.search(named, hosts[0].log.read_text())
    if hosts[1].apart:
        cut_off = "leaving, because no answer from the launcher for 7 s"
        assert cut_off in hosts[1].log.read_text()
