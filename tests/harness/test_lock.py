"""One harness at a time in a results folder."""

import os
import socket
from pathlib import Path

import psutil
import pytest

from repro.cli.main import main
from repro.io import lock

SWEEP = "run sweep --model timed --K 1 --M 1 --scale smoke --wandb disabled".split()


def test_the_second_is_told_in_one_line_who_is_there_and_what_to_do(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    with lock.held(tmp_path, "repro run table2 --scale smoke"):
        before = (tmp_path / lock.NAME).read_bytes()
        assert main([*SWEEP, "--results", str(tmp_path)]) == 2
        assert (tmp_path / lock.NAME).read_bytes() == before
    error = capfd.readouterr().err
    assert error.count("\n") == 1
    user, process = psutil.Process().username(), f"process {os.getpid()} on {socket.gethostname()}"
    for words in (
        f"--results {tmp_path}: {user} ({process}, since ",
        "`repro run table2 --scale smoke`",
        "wait",
    ):
        assert words in error
    assert [path.name for path in tmp_path.iterdir()] == [lock.NAME]
