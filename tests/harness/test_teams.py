"""Where workers run: what another user of this machine can reach of them."""

import os
from pathlib import Path

import intruder
import pytest

from repro.harness.pools import Local
from repro.harness.workers import Workers


@intruder.as_root
@pytest.mark.slow
def test_another_user_reaches_nothing_of_the_coordinator(tmp_path: Path, temporary: Path):
    before = intruder.ports(os.getpid())
    with Workers(Local(2, tmp_path / "logs")) as crew:
        crew.ready()
        opened, folders = intruder.ports(os.getpid()) - before, list(temporary.iterdir())
        with intruder.listening_socket() as anybody:
            port = anybody.getsockname()[1]
            places = [
                ("tcp", port),
                *(("tcp", port) for port in opened),
                *(("folder", str(folder)) for folder in folders),
            ]
            assert intruder.reached(*places) == [["tcp", port]]
        assert len(folders) == 1
    assert list(temporary.iterdir()) == []
