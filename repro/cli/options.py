"""Command-line options by tyro, where a mistake is a ValueError of one line."""

import dataclasses
import errno
import re
from typing import Any, Literal, NoReturn, TypeVar, get_args, get_origin, get_type_hints

import tyro
from annotated_types import Interval

# tyro's errors as data: not stable yet, so pyproject.toml limits its version.
from tyro import _errors as events

from repro.io.untrusted import did_you_mean, message, printable

T = TypeVar("T")


def parse(kind: type[T], arguments: list[str], prog: str, description: str | None = None) -> T:
    """Parse the fields of a dataclass with tyro.

    Args:
        kind: the dataclass; its field docstrings are the help texts.
        arguments: of the command line.
        prog: the command, for `--help` and errors.
        description: shown above the options; by default the docstring of `kind`.

    Raises:
        ValueError: one line, for the first mistake.
    """
    flags = [f"--{name.replace('_', '-')}" for name in _fields(kind)]

    def refuse(event: events.ParseErrorEvent) -> NoReturn:
        raise ValueError(f"{_explain(event, flags)}; `{prog} --help` lists what is allowed")

    with events.on_parse_error(refuse):
        options = tyro.cli(kind, args=arguments, prog=prog, description=description or kind.__doc__)
    _check_intervals(kind, options)
    return options


def _check_intervals(kind: type, options: Any) -> None:
    """Hold each number of a field `Annotated[..., Interval(ge=..., le=...)]` to its interval."""
    for name, hint in get_type_hints(kind, include_extras=True).items():
        allowed = [each for each in get_args(hint) if isinstance(each, Interval)]
        value = getattr(options, name)
        for number in value if isinstance(value, tuple) else (value,):
            for each in allowed:
                if number is not None and not each.ge <= number <= each.le:
                    raise ValueError(
                        f"--{name.replace('_', '-')} {number:g}: allowed is {each.ge:g} to "
                        f"{each.le:g}"
                    )


def _explain(event: events.ParseErrorEvent, flags: list[str]) -> str:
    """What is wrong, the value, what is allowed and what was probably meant."""
    if isinstance(event, events.UnrecognizedArgs):
        text = f"unrecognized: {' '.join(event.tokens)}"
        unknown = [token for token in event.tokens if token.startswith("--")]
        if not unknown:
            return f"{text}; names come before options, as in `repro run table2 --scale smoke`"
        hints = [did_you_mean(flag.partition("=")[0], flags) for flag in unknown]
        return text + next((hint for hint in hints if hint), "")
    if isinstance(event, events.MissingArgs):
        missing = ", ".join(_flag(each.arg) for each in event.missing_arguments)
        return f"{missing}: needed, and not given"
    if isinstance(event, events.BadValue):
        if event.offending_value is None:
            return f"{_flag(event.argument)}: needs a value"
        return f"{_flag(event.argument)} {event.offending_value}: takes no value"
    if isinstance(event, events.InvalidChoice):
        words = _choices(event.argument.field.type_stripped)
        hint = did_you_mean(event.value, words)
        return f"{_flag(event.argument)} {event.value}: allowed are {', '.join(words)}{hint}"
    if isinstance(event, events.InstantiationFailure) and event.argument is not None:
        # Every parser names the text that it cannot read last, in quotes.
        value = re.findall(r"'([^']*)'", event.message)[-1:]
        numbers = re.findall(r"\b(int|float)\b", str(event.argument.field.type_stripped))
        allowed = [{"int": "a whole number", "float": "a number"}[name] for name in numbers]
        if value and allowed:
            return f"{_flag(event.argument)} {value[0]}: allowed is {allowed[0]}"
        return f"{_flag(event.argument)}: {printable(event.message)}"
    return f"{type(event).__name__}: this combination of options is not allowed"


def _flag(argument: Any) -> str:
    """An argument of tyro as a user types it: `--model-args`."""
    return argument.lowered.name_or_flags[0]


def _choices(annotation: Any) -> list[str]:
    """The words of all Literals in a type, in the order of their definition."""
    if get_origin(annotation) is Literal:
        return [str(word) for word in get_args(annotation)]
    return [word for part in get_args(annotation) for word in _choices(part)]


def parse_named(
    kind: type[T], arguments: list[str], verb: str, field: str, hint: str, *, needed: bool = True
) -> T:
    """Parse the options of a verb, one of which may also stand first, without its flag.

    Args:
        kind: the dataclass of the options.
        arguments: of the command line, after the verb.
        verb: its name.
        field: the option that may stand first.
        hint: the end of the error where it is given twice, or needed and not given.
        needed: whether that option must be given.

    Raises:
        ValueError: one line.
    """
    first, rest = "", arguments
    if arguments and not arguments[0].startswith("-"):
        first, rest = arguments[0], arguments[1:]
    options: Any = parse(kind, rest, f"repro {verb} {first or f'[{field.upper()}]'}")
    flag_value = getattr(options, field)
    if (first and flag_value) or (needed and not first and not flag_value):
        raise ValueError(f"{field}: name it once, first or with --{field}; {hint}")
    if first:
        return dataclasses.replace(options, **{field: first})
    return options


def parse_with(
    kind: type[T],
    extra: list[tuple[str, Any, Any]],
    arguments: list[str],
    prog: str,
    description: str,
) -> tuple[T, dict[str, Any]]:
    """Parse the fields of a dataclass together with an experiment's parameters.

    Args:
        kind: the dataclass.
        extra: name, type and default of each parameter.
        arguments: of the command line.
        prog: the command, for `--help` and errors.
        description: shown above the options.

    Returns:
        The dataclass, and the parameters' values by name.

    Raises:
        ValueError: one line.
    """
    own_fields = set(_fields(kind))
    for name, _, _ in extra:
        if name in own_fields:
            raise ValueError(
                f"experiment() has a parameter '{name}', which is an option of {prog}; give it "
                "another name"
            )
    fields = [(name, hint, dataclasses.field(default=value)) for name, hint, value in extra]
    # tyro reads help texts from the source of `kind`, so the merged class derives from it.
    merged = dataclasses.make_dataclass("Merged", fields, bases=(kind,), frozen=True)
    parsed = parse(merged, arguments, prog, description)
    options = kind(**{name: getattr(parsed, name) for name in own_fields})
    return options, {name: getattr(parsed, name) for name, _, _ in extra}


def mistake(error: ValueError | OSError) -> str:
    """The error as one line for the user.

    Empty for an OSError that names no file and is no full disk: such an error is ours.
    """
    if not isinstance(error, OSError):
        return message(error)
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    if error.filename is None and not full:
        return ""
    remedy = "free some space, or" if full else "check that path, or"
    where = "the disk" if error.filename is None else error.filename
    reason = error.strerror or type(error).__name__
    return printable(
        f"{where}: {reason}; {remedy} choose another folder with --results (for `repro report` "
        "also --plots)"
    )


def _fields(kind: type) -> list[str]:
    assert dataclasses.is_dataclass(kind)
    return [field.name for field in dataclasses.fields(kind)]
