"""Tables and sizes as verbs print them."""

import io

import pytest
from rich.console import Console

from repro.harness.terminal import console_for, memory, show, table_of


def test_words_begin_at_the_left_and_numbers_end_at_the_right(capsys):
    show(
        ["[as it stands]", table_of(("what", "ms"), [("a", "1.00"), ("long", "10.00")], ("what",))]
    )
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


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0.0 MiB"), (2**20, "1.0 MiB"), (3 * 2**29, "1.50 GiB")]
)
def test_sizes_are_for_people(size, text):
    assert memory(size) == text
