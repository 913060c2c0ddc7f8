"""Tables as verbs print them."""

import io

import pytest

from repro.harness.terminal import show, table_of


def test_without_a_terminal_no_word_is_broken(capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("FORCE_COLOR", "1")  # as notebooks do; it makes no terminal of a pipe
    long = "transformer-K2-M16-94bacf " * 5
    table = table_of([{"what": "a", "nothing": "-", "why": long}], ("what", "why"), ("why",))
    show([table])
    output = capsys.readouterr().out
    assert long.strip() in output
    assert "nothing" not in output
    stdout = io.StringIO()
    stdout.isatty = lambda: True
    show([table], stdout)
    assert "K2-M16-94bacf transformer" not in stdout.getvalue(), "a terminal has its width"
