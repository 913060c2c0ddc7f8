"""docs/advise.md shows what `repro advise` prints, and its other commands are understood."""

import re
import shlex
from pathlib import Path

import pytest

from repro.cli.advise import AdviseOptions
from repro.cli.calibrate import CalibrateOptions
from repro.cli.main import main
from repro.cli.options import parse_named

PAGE = (Path(__file__).parent.parent / "docs/advise.md").read_text(encoding="utf-8")
# A command with its output: indented lines up to the next paragraph.
SHOWN = re.findall(r"(?m)^    \$ \.venv/bin/repro (advise .*)\n((?:    .*\n|\n)*)", PAGE)
OPTIONS = {"advise": AdviseOptions, "calibrate": CalibrateOptions}


@pytest.mark.slow
@pytest.mark.parametrize(("command", "shown"), SHOWN)
def test_the_output_is_that_of_the_command(command, shown, capsys):
    """Where this fails because the cost model or its error changed, paste the new output."""
    assert main(shlex.split(command)) == 0
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    expected = [line.removeprefix("    ") for line in shown.rstrip().splitlines()]
    assert printed[: len(expected)] == expected
    assert printed[len(expected)] == "", "the whole table is shown"


@pytest.mark.parametrize(
    "command", re.findall(r"(?m)^    \.venv/bin/repro ((?:advise|calibrate).*)$", PAGE)
)
def test_a_command_is_understood(command):
    verb, *words = shlex.split(command)
    parse_named(OPTIONS[verb], words, verb, "model", "", needed=False)
