"""Warnings of a command, each printed once and on one line."""

import sys
import warnings
from typing import Any

from repro.io.untrusted import printable


def once() -> None:
    """Print every further warning of this process in our form, the same text only once."""
    told: set[str] = set()

    def show(message: Warning | str, *_: Any) -> None:
        text = f"warning: {printable(str(message))}"
        if text not in told:
            print(text, file=sys.stderr)
        told.add(text)

    warnings.showwarning = show
