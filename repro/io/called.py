"""The name by which the user calls our command."""

import re
import sys
from pathlib import Path
from shutil import which


def as_called(text: str) -> str:
    """The text with its commands as the user calls ours, such as `.venv/bin/repro report`."""
    called = sys.argv[0]
    if Path(called).name != "repro" or which("repro") == called:
        return text
    return re.sub(r"(?<![\w./-])repro(?= (list|plan|run|report|predict|doctor)\b)", called, text)
