"""An experiment over two agents of torchrun, as on two hosts: K = 4 over both."""

import os
import socket
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from leftovers import program, until

from repro.harness.frame import all_runs
from repro.harness.results import load

HERE = Path(__file__).parent
AGENT = "-m torch.distributed.run --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-id t"
OPTIONS = "--scale smoke --wandb disabled --results"


def answers(address: tuple[str, int]) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(address) == 0


@pytest.mark.slow
@pytest.mark.timeout(200)  # twelve processes import torch, six of them after the others
def test_a_sweep_goes_on_with_fresh_workers_on_both(tmp_path: Path):
    path = f"{HERE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    environment = os.environ | {"PYTHONPATH": path, "GLOO_SOCKET_IFNAME": "lo"}
    environment |= {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "FATAL"}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = probe.getsockname()
    endpoint = ["--rdzv-endpoint", "{}:{}".format(*address)]
    command = [sys.executable, *AGENT.split(), *endpoint, "-m", "repro", "run"]
    command += [str(HERE / "two_hosts.py"), *OPTIONS.split(), str(tmp_path / "results")]
    log = tmp_path / "log"
    with log.open("w") as out, ExitStack() as ends:
        agents = []
        for _ in range(2):
            agent = program(tmp_path, command, env=environment, stdout=out, stderr=out)
            agents.append(ends.enter_context(agent))
            until(partial(answers, address), 60)  # two that start at once may both hold a store
        until(lambda: all(agent.poll() is not None for agent in agents), 180)
    rows = all_runs(load(tmp_path / "results"))
    assert rows["status"].tolist() == [
        "done",
        "failed(stage 1, F0 of step 0: RuntimeError: layer two is broken (in layers[1], a _Goes))",
        "done",
    ]
    # (M+K-1)F + M(R+B) + (K-1)B at least
    assert 0.12 <= rows.loc[0, "step_s"] < 5
    assert "layer two is broken" in log.read_text()
