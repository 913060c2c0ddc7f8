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
# A name that somebody may try, such as an earlier one -> ours.
_OTHER_NAMES = {
    "stages": "K",
    "micro-batches": "M",
    "mini-batch": "N",
    "batch-size": "N",
    "replicas": "D",
    "cut": "balance",
    "checkpoint": "recompute",
}


def refuse_links(folder: Path, *paths: Path) -> None:
    """Raise a one-line ValueError if a path below a folder is, or passes through, a link.

    The folder itself may be a link, such as one to another disk. Below it we overwrite and delete,
    so no link there is followed, wherever it leads. A pipe or a device, for which we might wait for
    ever, is refused too. A path need not exist, and may not leave the folder by `..`.
    """
    for path in paths:
        place = folder
        for part in path.relative_to(folder).parts:
            place /= part
            if part == "..":
                raise ValueError(f"{path}: leads out of {folder}; put the file into it")
            is_special = place.exists() and not place.is_file() and not place.is_dir()
            if place.is_symlink() or is_special:
                raise ValueError(
                    f"{place}: is a link or no regular file; put the file or folder itself there"
                )


def refuse_linked_files(folder: Path) -> None:
    """Raise a one-line ValueError if a file in a folder, such as a report's, is a link."""
    refuse_links(folder, *folder.glob("?*.*"))


def open_regular(path: Path, within: Path | None = None) -> BufferedReader:
    """Open a file for reading, without waiting for the other end of a pipe.

    Where `within` is given, a folder, `refuse_links` checks the path below it. A ValueError says
    that it is no regular file: a pipe or a device may never end.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
    if within is not None:
        refuse_links(within, path)
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
            f"is larger than {limit} bytes, the limit for this kind of file; check the path"
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


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant; None where none is close."""
    words = list(known)
    others = {other: ours for other, ours in _OTHER_NAMES.items() if ours in words}
    matches = [other for other in words if other.lower() == word.lower()]
    matches = matches or get_close_matches(word[:80], [*words, *others], n=1, cutoff=0.65)
    return others.get(matches[0], matches[0]) if matches else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the nearest known word, or an empty text where none is close."""
    near = nearest(word, known)
    return f"; did you mean {near!r}?" if near else ""
