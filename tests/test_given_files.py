"""Whatever stands at a path that a user gives: an answer of one line, and nothing is waited for."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from repro.cli.main import main

SIZES = ["--model-args", "L=1", "d=16", "H=32", "heads=2", "V=32", "T=8"]
SWEEP = ["sweep", "--model", "timed", "--K", "1", "--M", "1", "--scale", "smoke"]
KINDS: dict[str, Callable[[Path], object]] = {
    "nothing": lambda path: None,
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "a terabyte": lambda path: path.touch() or os.truncate(path, 2**40),
    "deep lists": lambda path: path.write_text("[" * 100_000),
    "UTF-16": lambda path: path.write_bytes('{"model": "ä"}'.encode("utf-16")),
    "null": lambda path: path.write_text("null"),
}
COMMANDS: dict[str, tuple[str, Callable[[str], list[str]]]] = {
    "run --spec": ("x.json", lambda path: ["run", "--spec", path, "--wandb", "disabled"]),
    "run --plan": ("x.json", lambda path: ["run", "--plan", path, "--wandb", "disabled"]),
    "simulate --device": (
        "x.json",
        lambda path: ["simulate", "transformer", *SIZES, "--device", path],
    ),
    "an experiment": ("x.py", lambda path: ["plan", path]),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.timeout(60)
def test_a_file_that_cannot_be_used_is_one_line(
    command: str,
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
):
    name, words = COMMANDS[command]
    monkeypatch.chdir(tmp_path)
    KINDS[kind](Path(name))
    assert main(words(name)) == 2
    error = capfd.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert len(error) < 1000


@pytest.mark.parametrize(
    "command", [["report", "--plots", "plots"], ["plan", *SWEEP], ["why", "x"], ["doctor"]]
)
@pytest.mark.parametrize("kind", ["nothing", "a pipe"])
@pytest.mark.timeout(120)
def test_a_results_folder_that_is_none_is_one_line_at_most(
    command: list[str],
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    KINDS[kind](Path("res"))
    assert main([*command, "--results", "res"]) in (0, 1, 2)
    assert capfd.readouterr().err.count("\n") <= 1


def test_a_report_s_stamp_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from repro.report import stamp

    os.mkfifo(tmp_path / ".report-stamp")
    assert not stamp.is_current(tmp_path, tmp_path)
