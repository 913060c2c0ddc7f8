"""Whatever is at a path that a user gives: the answer is one line, and nothing waits."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from repro.cli.main import main

KINDS: dict[str, Callable[[Path], object]] = {
    "nothing": lambda path: None,
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "a terabyte": lambda path: path.touch() or os.truncate(path, 2**40),
    "deep lists": lambda path: path.write_text("[" * 100_000),
    "UTF-16": lambda path: path.write_bytes('{"model": "ä"}'.encode("utf-16")),
    "null": lambda path: path.write_text("null"),
    "a number": lambda path: path.write_text("9" * 100_000),
    "no scale": lambda path: path.write_text("def experiment(): pass"),
}


@pytest.mark.parametrize(
    "command",
    [
        "predict transformer --model-args L=1 d=16 H=32 heads=2 V=32 T=8 --K 2 --device x.json",
        "plan x.py",
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_cannot_be_used_is_one_line(command, kind, tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    KINDS[kind](Path(command.split()[-1]))
    error = refused(command.split())
    assert len(error) < 1000


SWEEP = "plan sweep --model timed --K 1 --M 1 --scale smoke"


@pytest.mark.parametrize("command", ["report --plots plots", SWEEP])
def test_a_pipe_in_place_of_the_results_is_not_waited_for(command, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("res")
    assert main([*command.split(), "--results", "res"]) in (0, 1, 2)
    assert capfd.readouterr().err.count("\n") <= 1
