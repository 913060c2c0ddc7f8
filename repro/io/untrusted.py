"""Reading of files from outside as plain data: any bytes give a value or a one-line ValueError.

Only dicts, lists, texts, numbers, true, false and null are constructed, so no file can run code. A
file that is larger than one of ours can be is refused before it costs memory or time.
"""

import json
import os
import stat
from collections.abc import Iterable
from difflib import get_close_matches
from io import BufferedReader
from pathlib import Path
from typing import Any

# Limits in bytes: of a file with one object, such as a spec or a status, and of a file that grows
# with every round, with K x M or with the layers.
SMALL = 2**20
LARGE = 2**26


def inside(path: Path, folder: Path) -> Path:
    """The same path without links, of something in a folder that others may have filled.

    The folder may itself be a link, and so may what is in it where the link stays in it.
    """
    real = Path(os.path.realpath(path))
    if not real.is_relative_to(os.path.realpath(folder)):
        raise ValueError(f"{path.name} is a link out of {folder}; put the file itself there")
    return real


def open_regular(path: Path, within: Path | None = None) -> BufferedReader:
    """Open a file for reading, without waiting for the other end of a pipe.

    Where `within` is given, the file may be no link, and no folder on its way may be a link out of
    that folder. A ValueError says that it is no regular file: a pipe or a device may never end.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
    if within is not None:
        if path.is_symlink():
            raise ValueError(f"{path.name} is a link; put the file itself there")
        path = inside(path, within)
        flags |= os.O_NOFOLLOW
    descriptor = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError("is no regular file; give the path of one")
    return os.fdopen(descriptor, "rb")


def read_bytes(path: Path, limit: int, within: Path | None = None) -> bytes:
    """The content of a regular file of at most `limit` bytes, or a ValueError without the path."""
    try:
        with open_regular(path, within) as file:
            raw = file.read(limit + 1)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ValueError(f"not readable ({reason}); check the path") from None
    if len(raw) > limit:
        raise ValueError(
            f"is larger than {limit} bytes, the most that is read; is it the right file?"
        )
    return raw


def read_text(path: Path, limit: int, within: Path | None = None) -> str:
    """The content of a regular file as text; arguments and errors as in `read_bytes`."""
    try:
        return read_bytes(path, limit, within).decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"is no UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8"
        ) from None


def from_json(text: str) -> Any:
    """The value of a JSON text; raises a ValueError of one line."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not readable as JSON ({error}); correct it") from None
    except RecursionError:
        raise ValueError("holds too many lists and objects in each other") from None


def printable(text: str) -> str:
    """A text as one line, with control characters escaped, on which a terminal would act."""
    line = " ".join(text.split())
    characters = [c if c.isprintable() else c.encode("unicode_escape").decode() for c in line]
    return "".join(characters)


def message(error: BaseException) -> str:
    return printable(str(error))


def short(value: object, most: int = 80, *, quote: bool = True) -> str:
    """A value for a message: one line of about `most` characters at most."""
    text = printable(repr(value) if quote else str(value))
    return text if len(text) <= most else f"{text[:most]}..."


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the closest known word, or an empty text where none is close."""
    words = list(known)
    matches = [other for other in words if other.lower() == word.lower()]
    matches = matches or get_close_matches(word[:80], words, n=1)
    return f"; did you mean {matches[0]!r}?" if matches else ""
