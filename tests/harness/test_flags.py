"""Options of verbs: what may stand first, and mistakes as one line."""

import dataclasses

import pytest

from repro.cli.options import parse, parse_named
from repro.harness.spec import Scale


@dataclasses.dataclass(frozen=True)
class Options:
    """Some."""

    model: str = ""
    """a name"""
    K: tuple[int, ...] = (4,)
    """whole numbers"""
    link: float | None = None
    """a number"""
    M: int = 1
    """a number"""
    scale: Scale | None = None
    """a word"""


def named(*arguments: str, needed: bool = True) -> Options:
    return parse_named(
        Options, list(arguments), "verb", "model", "try `repro verb a`", needed=needed
    )


def test_a_name_may_stand_first_or_have_its_flag():
    assert (
        named("a", "--K", "1", "2")
        == named("--model", "a", "--K", "1", "2")
        == Options("a", (1, 2))
    )
    assert named(needed=False) == Options()


@pytest.mark.parametrize("arguments", [(), ("a", "--model", "b")])
def test_it_is_named_once(arguments):
    with pytest.raises(
        ValueError, match=r"^model: name it once, first or with --model; try `repro verb a`$"
    ):
        named(*arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--K", "two"], r"^--K two: allowed is a whole number; `repro verb --help`"),
        (["--link", "abc"], r"^--link abc: allowed is a number; `repro verb --help`"),
        (["--k", "1"], r"did you mean '--K'\?"),
        (
            ["--scale", "laptpo"],
            r"^--scale laptpo: allowed are smoke, gpu-dry, .*, paper; did you mean 'laptop'\?",
        ),
        (["--lnk", "1"], r"--lnk.*did you mean '--link'\?"),
    ],
)
def test_a_mistake_is_one_line(arguments, words):
    with pytest.raises(ValueError, match=words) as caught:
        parse(Options, arguments, "repro verb")
    assert "\n" not in str(caught.value)
