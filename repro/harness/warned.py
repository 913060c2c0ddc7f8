"""Warnings of a command, each printed once; repeated reasons are counted.

A folder with 20,000 foreign files gives a few lines, not 20,000.
"""

import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from repro.io.untrusted import printable

_MOST_FILES = 3  # files that are named for each reason
_MOST_REASONS = 8  # any further reasons are counted together


class LeftOut(UserWarning):
    """A recorded file that is ignored.

    Attributes:
        kind: the reason, without what differs from file to file.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} is left out: {reason}")
        self.kind = re.sub(r"\d+", "N", reason.partition("(")[0]).strip()


class Warned:
    """The warnings of one command: each text is printed once.

    Of the files that are left out for one reason, the first few are printed, and `finish` says how
    many more there were.
    """

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._left_out: Counter[str] = Counter()

    def show(self, message: Warning | str, *_: Any) -> None:
        """Print a warning; replaces `warnings.showwarning`."""
        text = printable(str(message))
        if text in self._seen:
            return
        self._seen.add(text)
        if isinstance(message, LeftOut):
            known = message.kind in self._left_out or len(self._left_out) < _MOST_REASONS
            kind = message.kind if known else "for other reasons"
            self._left_out[kind] += 1
            if self._left_out[kind] > _MOST_FILES:
                return
        print(f"warning: {text}", file=sys.stderr)

    def finish(self) -> None:
        """Print how many files were left out without a line of their own."""
        for kind, count in self._left_out.items():
            if count > _MOST_FILES:
                print(
                    f"warning: and {count - _MOST_FILES:,} more are left out: {kind}",
                    file=sys.stderr,
                )
