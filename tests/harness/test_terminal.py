"""Tables as verbs print them."""

import io

import pytest
from rich.console import Console

from repro.harness.terminal import console_for, show, table_of


def test_without_a_terminal_no_word_is_broken(capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("FORCE_COLOR", "1")  # as notebooks do; it makes no terminal of a pipe
    long = "transformer-K2-M16-94bacf " * 5
    show([table_of(("what", "why"), [("a", long)], ("what", "why"), wrapped=("why",))])
    assert long.strip() in capsys.readouterr().out
    stdout = io.StringIO()
    stdout.isatty = lambda: True
    terminal = Console(file=stdout, width=20)
    monkeypatch.setattr("rich.console.Console", lambda **_: terminal)
    assert console_for().width == 20, "a terminal has its width"
