"""Tables and sizes as verbs print them."""

import io

import pytest
from rich.console import Console

from repro.harness import text
from repro.harness.terminal import console_for, show, table_of


def test_words_begin_at_the_left_and_numbers_end_at_the_right(capsys):
    rows = [("a", "1.00"), ("long", "10.00")]
    show(["[as it stands]", table_of(("what", "ms"), rows, ("what",))])
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        *("[as it stands]", "what     ms", "a      1.00", "long  10.00")
    ]


def test_without_a_terminal_no_word_is_broken(capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "20")
    long = "transformer-K2-M16-94bacf " * 5
    show([table_of(("what", "why"), [("a", long)], ("what", "why"), wrapped=("why",))])
    assert long.strip() in capsys.readouterr().out
    terminal = Console(file=io.StringIO(), force_terminal=True, width=20)
    monkeypatch.setattr("rich.console.Console", lambda **_: terminal)
    assert console_for().width == 20, "a terminal has its width"


def test_numbers_are_for_people():
    values = (9990.4, 178.2, 12.34, 9.996, 0.0123, 0, 999.6)
    numbers = ["9,990", "178", "12.3", "10.0", "0.0123", "0", "1,000"]
    assert [text.number(value) for value in values] == numbers
    seconds = ["1.24 s", "3.20 ms", "1.00 s", "85.0 us"]
    assert [text.seconds(s) for s in (1.2377, 0.0032, 0.9999, 85e-6)] == seconds
    sizes = ["1.25 GiB", "3.00 MiB", "36.1 KiB", "540 B"]
    assert [text.size(s) for s in (1.25 * 2**30, 3 * 2**20, 36966, 540)] == sizes
    assert [text.duration(s) for s in (0.2, 45, 360, 9000)] == ["1 s", "45 s", "6 min", "2.5 h"]
