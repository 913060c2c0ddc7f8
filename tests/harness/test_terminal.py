"""Tables and sizes as verbs print them."""

import pytest

from repro.harness.terminal import memory, show, table_of


def test_words_begin_at_the_left_and_numbers_end_at_the_right(capsys):
    show(["[as it stands]", table_of(("what", "ms"), [("a", "1.00"), ("long", "10.00")], ("what",))])
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        *("[as it stands]", "what     ms", "a      1.00", "long  10.00")
    ]


@pytest.mark.parametrize(("size", "text"), [(0, "0.0 MiB"), (2**20, "1.0 MiB"), (3 * 2**29, "1.50 GiB")])
def test_sizes_are_for_people(size, text):
    assert memory(size) == text
