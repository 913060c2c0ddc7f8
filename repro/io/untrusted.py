"""Files from outside as plain data: whatever their bytes, a value or one `ValueError` line.

Nothing is constructed but dicts, lists, texts, numbers, true, false and null, so nothing that is
read here can run code. A file that is larger or deeper than one of ours can be is refused before it
costs memory or time.
"""

import json
import math
import os
import stat
from collections.abc import Iterable, Iterator
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import Any

SMALL = 2**20  # bytes of a spec, a status or another file that holds one object
LARGE = 2**26  # bytes of a file that grows with every round, with K x M or with the layers
DEPTH = 32  # of lists and objects in each other
VALUES = 2**20  # values in one value


def open_regular(path: Path, *, links: bool = True) -> BufferedReader:
    """Open a regular file for reading, without waiting for the other end of a pipe.

    Args:
        path: of the file.
        links: whether the path itself may be a symbolic link.

    Raises:
        OSError: if it cannot be opened.
        ValueError: if it is no regular file, since a pipe or a device may never end.
    """
    if not links and path.is_symlink():
        raise ValueError("is a symbolic link; put the file itself in its place")
    refused = 0 if links else os.O_NOFOLLOW

    def at_once(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NONBLOCK | os.O_NOCTTY | refused)

    file = open(path, "rb", opener=at_once)  # noqa: SIM115  (the caller closes it)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ValueError("is no regular file; give the path of one")
    return file


def read_bytes(path: Path, limit: int, *, links: bool = True) -> bytes:
    """The content of a regular file.

    Args:
        path: of the file.
        limit: the most bytes that it may have.
        links: whether the path itself may be a symbolic link.

    Raises:
        ValueError: one line, which does not name the file.
    """
    try:
        with open_regular(path, links=links) as file:
            raw = file.read(limit + 1)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ValueError(f"not readable ({reason}); check the path") from None
    if len(raw) > limit:
        allowed = f"{limit} bytes, the most that is read"
        raise ValueError(f"is larger than {allowed}; is it the right file?")
    return raw


def read_text(path: Path, limit: int, *, links: bool = True) -> str:
    """The content of a regular file as text; arguments and errors as of `read_bytes`."""
    raw = read_bytes(path, limit, links=links)
    if raw.startswith(b"\xef\xbb\xbf"):
        raise ValueError("begins with a byte order mark; save it as UTF-8 without one")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        where = f"{error.reason} at byte {error.start}"
        raise ValueError(f"is no UTF-8 ({where}); save it as UTF-8") from None


def from_json(text: str, *, any_number: bool = False) -> Any:
    """The value of a JSON text.

    Args:
        text: in JSON.
        any_number: also read the numbers that Python writes and JSON does not have: NaN, infinities
            and integers of more than 64 bits.

    Raises:
        ValueError: one line.
    """
    try:
        integer = int if any_number else _integer
        value = json.loads(text, object_pairs_hook=unique, parse_int=integer)
    except json.JSONDecodeError as error:
        raise ValueError(f"not readable as JSON ({error}); correct it") from None
    except RecursionError:
        depth = f"more than {DEPTH} lists and objects in each other"
        raise ValueError(f"not readable as JSON ({depth})") from None
    check_plain(value, any_number=any_number)
    return value


def check_plain(value: Any, most: int = VALUES, *, any_number: bool = False) -> None:
    """Raise a ValueError unless the value is one that JSON can hold.

    Args:
        value: anything.
        most: how many values may be in it.
        any_number: also allow NaN, infinities and integers of more than 64 bits.
    """
    level, count = [value], 0
    for _ in range(DEPTH + 1):
        count += len(level)
        if count > most:
            raise ValueError(f"holds more than {most} values; give less")
        parts = (part for one in level for part in _parts(one, any_number))
        level = list(islice(parts, most + 1))
        if not level:
            return
    raise ValueError(f"holds more than {DEPTH} lists and objects in each other; make it flatter")


def unique(pairs: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
    """A dict of pairs; raises ValueError unless their keys are different texts."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if not isinstance(name, str):
            raise ValueError(f"the key {short(name)} is no text; put it in quotes")
        if name in found:
            raise ValueError(f"the key {short(name)} is there twice; take one out")
        found[name] = value
    return found


def printable(text: str) -> str:
    """A text as one line, in which what a terminal would act on is escaped, such as a colour."""
    line = " ".join(text.split())
    return "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in line
    )


def message(error: BaseException) -> str:
    """What an exception says as one printable line, also where it fails to say it."""
    try:
        return printable(str(error))
    except Exception as failure:
        return f"(its text cannot be shown: {type(failure).__name__})"


def short(value: object, most: int = 80, *, quote: bool = True) -> str:
    """A value as it stands in a message: one line of at most about `most` characters."""
    try:
        text = repr(value) if quote else str(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, lists too deep
        text = f"{with_article(value)} too large to show"
    text = printable(text)
    return text if len(text) <= most else f"{text[:most]}..."


def with_article(value: object) -> str:
    """The type of a value in a message: "a list", "an int"."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _integer(digits: str) -> int:
    """An integer of JSON; Python itself refuses thousands of digits with advice for programmers."""
    return int(digits[:40])  # of so many digits none has 64 bits


def _parts(value: Any, any_number: bool) -> Iterator[Any]:
    """What a plain value directly holds; raises ValueError if it is none."""
    if isinstance(value, str):
        if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise ValueError("holds half of a character (a lone surrogate); write the whole one")
    elif isinstance(value, bool) or value is None:
        return
    elif isinstance(value, int):
        if not any_number and not -(2**63) <= value < 2**63:
            raise ValueError("holds an integer of more than 64 bits; give a smaller one")
    elif isinstance(value, float):
        if not any_number and not math.isfinite(value):
            raise ValueError(f"holds {value}; allowed are finite numbers")
    elif isinstance(value, list | tuple):
        yield from value
    elif isinstance(value, dict):
        if strange := [name for name in value if not isinstance(name, str)]:
            raise ValueError(f"the key {short(strange[0])} is no text; put it in quotes")
        yield from value
        yield from value.values()
    else:
        raise ValueError(f"holds {with_article(value)}; allowed is what JSON can hold")
