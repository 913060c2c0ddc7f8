"""Command-line options by tyro, where a mistake is a ValueError of one line."""

import dataclasses
import errno
import io
import re
from contextlib import redirect_stderr
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import tyro

from repro.harness.mistakes import near
from repro.io.untrusted import message, printable

T = TypeVar("T")


def parse(kind: type[T], arguments: list[str], prog: str, description: str | None = None) -> T:
    """Parse with tyro, but report a mistake as a ValueError of one line.

    tyro prints a framed message and exits; the frame's first part is the mistake itself.
    """
    heard = io.StringIO()
    try:
        with redirect_stderr(heard):
            return tyro.cli(
                kind, args=arguments, prog=prog, description=description or kind.__doc__
            )
    except SystemExit as stop:
        if not stop.code:
            raise
    lines = [line.strip("│ ").strip() for line in heard.getvalue().splitlines()[1:]]
    said = " ".join(
        line
        for line in lines[: next((n for n, s in enumerate(lines) if s[:1] in "─╰"), None)]
        if line
    )
    said = _of_another_kind(kind, said)
    if said.startswith("Unrecognized options:") and "--" not in said:
        said = (
            f"{said.rstrip('.')}; names come before options, as in `repro run table2 --scale smoke`"
        )
    flags = [f"--{name.replace('_', '-')}" for name in _fields(kind)]
    hints = [
        hint
        for word in re.findall(r"--[\w-]+", said)
        if word not in flags and (hint := near(word, flags))
    ]
    raise ValueError(
        f"{said.rstrip('.')}{hints[0] if hints else ''}; `{prog} --help` lists what is allowed"
    )


def parse_named(
    kind: type[T], arguments: list[str], verb: str, field: str, hint: str, *, needed: bool = True
) -> T:
    """Parse the options of a verb of which one, `field`, may also stand first, without its flag.

    Raises a ValueError of one line, which ends with `hint`, where it is there twice, or is needed
    and not there.
    """
    first = arguments[:1] if arguments and not arguments[0].startswith("-") else []
    options: Any = parse(
        kind, arguments[len(first) :], " ".join(["repro", verb, *(first or [f"[{field.upper()}]"])])
    )
    given = getattr(options, field)
    if (first and given) or (needed and not first and not given):
        raise ValueError(f"{field}: name it once, first or with --{field}; {hint}")
    return dataclasses.replace(options, **{field: first[0]}) if first else options


def parse_with(
    kind: type[T],
    extra: list[tuple[str, Any, Any]],
    arguments: list[str],
    prog: str,
    description: str,
) -> tuple[T, dict[str, Any]]:
    """Parse the fields of `kind` and further (name, type, default) ones; returns the options and the further values."""
    taken = set(_fields(kind))
    for name, _, _ in extra:
        if name in taken:
            raise ValueError(
                f"experiment() has a parameter '{name}', which is an option of {prog}; give it "
                "another name"
            )
    # tyro reads help texts from the source of `kind`, so the merged class derives from it
    merged = dataclasses.make_dataclass(
        "Merged",
        [(n, t, dataclasses.field(default=d)) for n, t, d in extra],
        bases=(kind,),
        frozen=True,
    )
    parsed = parse(merged, arguments, prog, description)
    return kind(**{n: getattr(parsed, n) for n in taken}), {
        n: getattr(parsed, n) for n, _, _ in extra
    }


def mistake(error: ValueError | OSError) -> str:
    """The error as one line for the user; empty for an OSError that names no file and is no full disk."""
    if not isinstance(error, OSError):
        return message(error)
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    if error.filename is None and not full:
        return ""
    remedy = "free some space, or" if full else "check that path, or"
    where = "the disk" if error.filename is None else error.filename
    said = error.strerror or type(error).__name__
    return printable(
        f"{where}: {said}; {remedy} choose another folder with --results (for `repro report` also "
        "--plots)"
    )


def _of_another_kind(kind: type, said: str) -> str:
    """Our words for a text where a number is due, instead of tyro's; any others as they are."""
    if choice := re.match(r"invalid choice '([^']*)' for argument '(--[\w-]+)'", said):
        if words := _choices(kind, choice[2]):
            return (
                f"{choice[2]} {choice[1]}: allowed are {', '.join(words)}{near(choice[1], words)}"
            )
        return said
    wrong = re.match(r"Error parsing (--[\w-]+): .*'([^']*)'[]]?\.?$", said)
    types = {
        f"--{field.name.replace('_', '-')}": str(field.type) for field in dataclasses.fields(kind)
    }
    due = types.get(wrong[1], "") if wrong else ""
    allowed = "a whole number" if "int" in due else "a number" if "float" in due else ""
    return f"{wrong[1]} {wrong[2]}: allowed is {allowed}" if wrong and allowed else said


def _choices(kind: type, flag: str) -> list[str]:
    """The words that a flag takes, in the order of their definition; none where it takes others as well."""
    hint = get_type_hints(kind).get(flag.removeprefix("--").replace("-", "_"))
    kinds = get_args(hint) if isinstance(hint, UnionType) or get_origin(hint) is Union else (hint,)
    return [str(word) for one in kinds if get_origin(one) is Literal for word in get_args(one)]


def _fields(kind: type) -> list[str]:
    """Names of a dataclass's fields."""
    assert dataclasses.is_dataclass(kind)
    return [field.name for field in dataclasses.fields(kind)]
