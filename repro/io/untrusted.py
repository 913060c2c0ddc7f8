"""Reading of files from outside as plain data: any bytes give a value or a one-line ValueError.

Only dicts, lists, texts, numbers, true, false and null are constructed, so no file can run code. A
file that is larger than one of ours can be is refused before it costs memory or time.
"""

import json
import math
import os
import stat
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from io import BufferedReader
from pathlib import Path
from typing import Any

# Limits in bytes: of a file with one object, such as a spec or a status, and of a file that grows
# with every round, with K x M or with the layers.
SMALL = 2**20
LARGE = 2**26
_TOO_DEEP = "holds too many lists and objects in each other; make it flatter"


def inside(path: Path, folder: Path) -> Path:
    """The same path without links, of something in a folder that others may have filled.

    The folder may itself be a link, and so may what is in it where the link stays in it.

    Raises:
        ValueError: one line, without the path, where a link leads out of the folder.
    """
    real = Path(os.path.realpath(path))
    if not real.is_relative_to(os.path.realpath(folder)):
        raise ValueError(f"a link leads out of {folder}; put the file itself in its place")
    return real


def open_regular(path: Path, *, links: bool = True, within: Path | None = None) -> BufferedReader:
    """Open a regular file for reading, without waiting for the other end of a pipe.

    Args:
        path: of the file.
        links: whether the path itself may be a symbolic link.
        within: a folder that no link may lead out of, see `inside`.

    Raises:
        OSError: the file cannot be opened.
        ValueError: it is no regular file; a pipe or a device may never end.
    """
    if not links and path.is_symlink():
        raise ValueError("is a symbolic link; put the file itself in its place")
    if within is not None:
        path, links = inside(path, within), False
    extra_flags = os.O_NONBLOCK | os.O_NOCTTY
    if not links:
        extra_flags |= os.O_NOFOLLOW

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | extra_flags)

    file = open(path, "rb", opener=opener)  # noqa: SIM115  (the caller closes it)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ValueError("is no regular file; give the path of one")
    return file


def read_bytes(path: Path, limit: int, *, links: bool = True, within: Path | None = None) -> bytes:
    """The content of a regular file.

    Args:
        path: of the file.
        limit: greatest number of bytes.
        links, within: as of `open_regular`.

    Raises:
        ValueError: one line, without the path of the file.
    """
    try:
        with open_regular(path, links=links, within=within) as file:
            raw = file.read(limit + 1)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ValueError(f"not readable ({reason}); check the path") from None
    if len(raw) > limit:
        raise ValueError(
            f"is larger than {limit} bytes, the most that is read; is it the right file?"
        )
    return raw


def read_text(path: Path, limit: int, *, links: bool = True, within: Path | None = None) -> str:
    """The content of a regular file as text; arguments and errors as in `read_bytes`."""
    raw = read_bytes(path, limit, links=links, within=within)
    if raw.startswith(b"\xef\xbb\xbf"):
        raise ValueError("begins with a byte order mark; save it as UTF-8 without one")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"is no UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8"
        ) from None


def from_json(text: str, *, any_number: bool = False) -> Any:
    """The value of a JSON text.

    Args:
        text: in JSON.
        any_number: also accept numbers that Python writes but JSON does not have: NaN, infinities
            and integers of more than 64 bits.

    Raises:
        ValueError: one line.
    """
    try:
        integer = int if any_number else _integer
        value = json.loads(text, object_pairs_hook=unique, parse_int=integer)
        check_plain(value, any_number=any_number)
    except json.JSONDecodeError as error:
        raise ValueError(f"not readable as JSON ({error}); correct it") from None
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    return value


def check_plain(value: Any, *, any_number: bool = False) -> None:
    """Raise a ValueError unless the value is one that JSON can hold.

    Args:
        value: anything.
        any_number: also accept NaN, infinities and integers of more than 64 bits.
    """
    try:
        for part in _parts(value, any_number):
            check_plain(part, any_number=any_number)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def unique(pairs: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
    """A dict of key-value pairs; raises a ValueError unless the keys are different texts."""
    result: dict[str, Any] = {}
    for name, value in pairs:
        if not isinstance(name, str):
            raise ValueError(f"the key {short(name)} is no text; put it in quotes")
        if name in result:
            raise ValueError(f"the key {short(name)} is there twice; take one out")
        result[name] = value
    return result


def printable(text: str) -> str:
    """A text as one line, with control characters escaped, on which a terminal would act."""
    line = " ".join(text.split())
    if line.isprintable():
        return line
    characters = [c if c.isprintable() else c.encode("unicode_escape").decode() for c in line]
    return "".join(characters)


def message(error: BaseException) -> str:
    """The message of an exception as one printable line, also if its `__str__` raises."""
    try:
        return printable(str(error))
    except Exception as failure:
        return f"(its text cannot be shown: {type(failure).__name__})"


def short(value: object, most: int = 80, *, quote: bool = True) -> str:
    """A value for a message: one line of about `most` characters at most."""
    try:
        text = repr(value) if quote else str(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, lists too deep
        text = f"{with_article(value)} too large to show"
    text = printable(text)
    return text if len(text) <= most else f"{text[:most]}..."


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the closest known word, or an empty text where none is close."""
    words = list(known)
    matches = [other for other in words if other.lower() == word.lower()]
    if not matches:
        matches = get_close_matches(word[:80], words, n=1)
    return f"; did you mean {matches[0]!r}?" if matches else ""


def with_article(value: object) -> str:
    """The type of a value in a message: "a list", "an int"."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _integer(digits: str) -> int:
    """An integer of JSON, of which 40 digits are read: already those have more than 64 bits.

    Of thousands of digits, Python raises an error with advice for programmers.
    """
    return int(digits[:40])


def _parts(value: Any, any_number: bool) -> Iterator[Any]:
    """The values directly inside a plain value; raises a ValueError if the value is not plain."""
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
        for name in value:
            if not isinstance(name, str):
                raise ValueError(f"the key {short(name)} is no text; put it in quotes")
        yield from value
        yield from value.values()
    else:
        raise ValueError(f"holds {with_article(value)}; allowed is what JSON can hold")
