"""Tests that need what this machine lacks skip themselves, with the reason."""

import atexit
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from fcntl import LOCK_EX, LOCK_SH, LOCK_UN, flock
from pathlib import Path

import pytest

# A shell starts what runs in its background with SIGINT ignored. Tests send it to programs, which
# inherit this.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})

# Where tests, what they start, and libraries put files; short, as the path of a socket must be.
if worker := os.environ.get("PYTEST_XDIST_WORKER", ""):  # such as gw1
    COMMON = Path(tempfile.gettempdir())  # of the program that has started the workers
    FOLDER = Path(f"{COMMON}{worker[2:]}")
    FOLDER.mkdir(0o700)
else:
    COMMON = FOLDER = Path(tempfile.mkdtemp(prefix="t-"))


@atexit.register
def remove_folders() -> None:
    """Also those of workers that were killed."""
    for path in FOLDER.parent.glob(f"{FOLDER.name}*"):
        shutil.rmtree(path, ignore_errors=True)


tempfile.tempdir = str(FOLDER)
# W&B's service writes a log into the user's cache. What uv has downloaded is found all the same.
_CACHE = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
os.environ.setdefault("UV_CACHE_DIR", f"{_CACHE}/uv")
_PLACES = "TMPDIR", "MPLCONFIGDIR", "HF_DATASETS_CACHE", "XDG_CACHE_HOME"
os.environ.update(dict.fromkeys(_PLACES, str(FOLDER)))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """While a test marked `alone` runs, no other worker runs one.

    The time that it waits for them is not counted, since its time limit is set inside.
    """
    kind = LOCK_EX if item.get_closest_marker("alone") else LOCK_SH
    with (COMMON / "door").open("w") as door, (COMMON / "machine").open("w") as machine:
        flock(door, LOCK_EX)  # else the others' next tests would keep it waiting
        flock(machine, kind)
        flock(door, LOCK_UN)
        try:
            return (yield)
        finally:
            flock(machine, LOCK_UN)  # a process that the test has forked may keep the file open


@pytest.fixture
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder of one test, so that it finds no folder of another."""
    folder = tmp_path_factory.mktemp("t")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def refused(capfd: pytest.CaptureFixture[str]) -> Callable[[Sequence[str]], str]:
    """Runs a command that is refused, in one line of error, which it returns."""

    def run(command: Sequence[str]) -> str:
        from repro.cli.main import main

        assert main([*command]) == 2
        error = capfd.readouterr().err
        assert error.startswith("error: ")
        assert error.count("\n") == 1
        return error

    return run


def pytest_collection_finish() -> None:
    """Stages import the module of their function, and so pytest, which takes 0.3 s in each."""
    if processes := sys.modules.get("repro.gpipe.runtime.processes"):
        processes.PRELOADED.append("pytest")


def pytest_runtest_setup(item: pytest.Item) -> None:
    needed = {"gpu": 1, "multigpu": 2}
    least = max((needed.get(marker.name, 0) for marker in item.iter_markers()), default=0)
    if least:
        import torch  # only where a test asks: many need no torch

        if (found := torch.cuda.device_count()) < least:
            pytest.skip(f"needs {least} CUDA devices, found {found}")
