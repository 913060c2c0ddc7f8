"""Temporary folders: none is left at the end."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from repro.io.temporary import own_folder


def test_nothing_is_left_and_no_other_user_can_look_in(temporary: Path):
    with own_folder() as folder:
        assert folder.parent == temporary
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "file").touch()
    assert list(temporary.iterdir()) == []


def printed(code: str, temporary: Path) -> str:
    """What a program prints that has this temporary folder."""
    environment = {**os.environ, "TMPDIR": str(temporary), "PYTHONUNBUFFERED": ""}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True).stdout


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
