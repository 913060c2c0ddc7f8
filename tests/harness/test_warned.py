"""Foreign folders by the thousand: a few lines, in seconds."""

import time
import warnings
from pathlib import Path

import pytest

from repro.cli.main import main
from repro.harness.results import load
from repro.harness.warned import LeftOut, Warned

MANY = 2000


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Warned:
    """The warnings of one command."""
    warned = Warned()
    monkeypatch.setattr(warnings, "showwarning", warned.show)
    return warned


def foreign(results: Path, inside: str) -> None:
    for number in range(MANY):
        folder = results / inside / f"folder{number:04d}"
        folder.mkdir(parents=True)
        (folder / "experiment.json").write_text(f'{{"name": {number}')


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("inside", ["machine/smoke", ""])
def test_foreign_folders_are_counted(
    tmp_path: Path, inside: str, told: Warned, capfd: pytest.CaptureFixture[str]
):
    """At the place of an experiment, and where none can be."""
    foreign(tmp_path, inside)
    began = time.monotonic()
    assert len(load(tmp_path).rows) == 0
    load(tmp_path)  # a command may read them twice
    told.finish()
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 4, lines[:9]
    names = ("folder0000", "folder0001", "folder0002")
    assert all(
        name in line and "is left out" in line for name, line in zip(names, lines, strict=False)
    )
    assert lines[3].startswith(f"warning: and {MANY - 3:,} more are left out: ")
    assert time.monotonic() - began < 60  # about a second where nothing else runs


@pytest.mark.filterwarnings("default")
def test_many_reasons_are_a_few_lines_too(told: Warned, capfd: pytest.CaptureFixture[str]):
    for number in range(1000):
        warnings.warn(
            LeftOut(Path(f"file{number}"), f"reason {'abcdefghijklmnop'[number % 16]} ({number})"),
            stacklevel=1,
        )
    for _ in range(2):
        warnings.warn("something else", stacklevel=1)
    told.finish()
    lines = capfd.readouterr().err.splitlines()
    assert lines.count("warning: something else") == 1
    assert len(lines) < 40
    assert "warning: and 60 more are left out: reason a" in lines
    assert any("for other reasons" in line for line in lines)


def test_a_command_ends_with_the_count(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    foreign(tmp_path, "machine/smoke")
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert main(["report", "--results", str(tmp_path), "--plots", str(tmp_path / "plots")]) in (
            0,
            2,
        )
    error = capfd.readouterr().err.splitlines()
    assert len(error) <= 5, error[:9]
    assert any(f"and {MANY - 3:,} more are left out" in line for line in error)
