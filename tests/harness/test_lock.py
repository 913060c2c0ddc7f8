"""One harness at a time in a results folder."""

import getpass
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from repro.cli.main import main
from repro.io import lock

ROOT = Path(__file__).parents[2]
SWEEP = "run sweep --model timed --K 1 --M 1 --scale smoke --wandb disabled".split()
OWNER = """
import subprocess, sys, time
from pathlib import Path
from repro.io import lock
with lock.held(Path(sys.argv[1]), "repro run table2"):
    # As a worker process that outlives the harness.
    child = subprocess.Popen(["sleep", "60"], close_fds=False)
    print(child.pid, flush=True)
    time.sleep(60)
"""


def test_the_second_is_told_in_one_line_who_is_there_and_what_to_do(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    with lock.held(tmp_path, "repro run table2 --scale smoke"):
        before = (tmp_path / lock.NAME).read_bytes()
        assert main([*SWEEP, "--results", str(tmp_path)]) == 2
        assert (tmp_path / lock.NAME).read_bytes() == before
    error = capfd.readouterr().err
    assert error.count("\n") == 1
    owner = f"{getpass.getuser()} (process {os.getpid()} on {socket.gethostname()}, since "
    for words in (f"--results {tmp_path}: {owner}", "`repro run table2 --scale smoke`", "wait"):
        assert words in error
    assert [path.name for path in tmp_path.iterdir()] == [lock.NAME]


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_lock_that_is_no_file_of_its_own_is_refused_and_left_alone(tmp_path: Path, kind: str):
    theirs = tmp_path / "thesis"
    theirs.write_text("years of work")
    path = tmp_path / lock.NAME
    os.mkfifo(path) if kind == "pipe" else path.symlink_to(theirs)
    with (
        pytest.raises(ValueError, match=r"\.lock: it is (a link|no regular file)"),
        lock.held(tmp_path, "repro run"),
    ):
        pass
    assert theirs.read_text() == "years of work"


def test_a_killed_owner_holds_nothing_also_while_its_children_live(tmp_path: Path):
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert owner.stdout is not None
    child = int(owner.stdout.readline())
    try:
        with (
            pytest.raises(ValueError, match=rf"process {owner.pid} on .*`repro run table2`"),
            lock.held(tmp_path, ""),
        ):
            pass
        owner.kill()
        owner.wait()
        os.kill(child, 0)
        with lock.held(tmp_path, ""):
            pass
    finally:
        os.kill(child, 9)
        owner.kill()
        owner.stdout.close()
