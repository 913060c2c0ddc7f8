"""Temporary folders: none is left at the end, and that of a killed process goes with the next."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from repro.io.temporary import own_folder

ENDED = 2**22 + 1  # more than Linux gives out


def test_nothing_is_left_and_a_folder_says_whose_it_is(temporary: Path):
    with own_folder() as folder:
        assert folder.parent == temporary
        assert f"-{os.getpid()}-" in folder.name
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "file").touch()
    assert list(temporary.iterdir()) == []


def printed(code: str, temporary: Path) -> str:
    """What a program prints that has this temporary folder."""
    environment = {**os.environ, "TMPDIR": str(temporary), "PYTHONUNBUFFERED": ""}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True).stdout


def renamed(folder: Path, place: int, part: object) -> Path:
    """A folder like this one whose name has another host (1), process (2) or start (3)."""
    parts = folder.name.split("-")
    parts[place] = str(part)
    other = folder.with_name("-".join(parts))
    other.mkdir()
    return other


def test_the_folder_of_a_killed_process_is_removed_by_the_next(temporary: Path):
    code = (
        "import os, signal; from repro.io.temporary import own_folder\nwith own_folder():\n    "
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    printed(code, temporary)
    (left,) = temporary.iterdir()
    with own_folder():
        assert not left.exists()


def test_folders_of_living_processes_and_of_others_stay(temporary, monkeypatch):
    with own_folder() as folder:
        ended = renamed(folder, 2, ENDED)
        stranger = renamed(ended, 1, "0" * 12)
        reused = renamed(folder, 3, 1)  # another process has its number now
        with monkeypatch.context() as patch:
            patch.setattr(os, "getuid", lambda: 12345)
            with own_folder():
                assert ended.exists(), "of another user"
        with own_folder():
            assert folder.exists()
            assert stranger.exists()
            assert not ended.exists()
            assert not reused.exists()


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        (
            "import os; from repro.io.temporary import own_folder\nwith own_folder() as folder:\n"
            " if os.fork(): os.wait(); print(folder.exists())",
            "True\n",
        ),
        ("import tempfile; from repro.__main__ import main; main(); tempfile.mkdtemp()", ""),
        (  # it does not return
            "import sys; sys.argv = ['repro', 'predict']; from repro.__main__ import main\n"
            "print('printed'); main(); print('never')",
            "printed\n",
        ),
    ],
    ids=["a forked process ends first", "a library leaves a folder", "predict ends at once"],
)
def test_nothing_is_left_by_a_program(code, shown, temporary: Path):
    assert printed(code, temporary).endswith(shown)
    assert list(temporary.iterdir()) == []
