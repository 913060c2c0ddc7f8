"""The commands of docs/training.md are understood, and its program runs on two stages."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from repro.cli.options import parse_named
from repro.cli.train import TrainOptions
from repro.train import checkpoints

PAGE = (Path(__file__).parent.parent / "docs/training.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    \.venv/bin/repro train (.*)$", PAGE, flags=re.M)


def test_its_commands_are_understood():
    assert len(COMMANDS) >= 4
    for command in COMMANDS:
        assert parse_named(TrainOptions, shlex.split(command), "train", "model", "").model


@pytest.mark.slow
def test_the_program_runs(tmp_path):
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)
    (tmp_path / "program.py").write_text(program, encoding="utf-8")
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "program.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "step=100" in done.stdout
    newest, _ = checkpoints.newest_usable(tmp_path / "runs/noise")
    assert newest is not None
    assert newest.name == "step-000100"
