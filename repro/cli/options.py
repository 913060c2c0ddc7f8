"""Command-line options by tyro, where a mistake is a ValueError of one line."""

import dataclasses
import errno
import re
from collections.abc import Iterable, Sequence
from inspect import cleandoc
from typing import Annotated, Any, Literal, NoReturn, TypeVar, get_args, get_origin, get_type_hints

import tyro
from annotated_types import Interval

# tyro's errors as data: not stable yet, so pyproject.toml limits its version.
from tyro import _errors as events

from repro.harness.catalog import find
from repro.harness.plan import FILTERS
from repro.io.untrusted import did_you_mean, message, nearest, printable

T = TypeVar("T")
# Mini-batch of a step, in every verb that has one.
MiniBatch = Annotated[int, Interval(ge=1, le=2**20)]


def parse(
    kind: type[T],
    arguments: list[str],
    prog: str,
    description: str | None = None,
    extra: Iterable[tuple[str, Any, Any]] = (),
) -> T:
    """Parse the fields of a dataclass, whose docstrings of one line each are the help texts.

    A number in a field `Annotated[..., Interval(ge=..., le=...)]` must lie in its interval. `extra`
    are name, type and default of further fields, such as the parameters of an experiment. The first
    mistake is a ValueError of one line.
    """
    description = cleandoc(description or kind.__doc__ or "")
    assert dataclasses.is_dataclass(kind)
    own_fields = {field.name for field in dataclasses.fields(kind)}
    fields = [(name, hint, dataclasses.field(default=default)) for name, hint, default in extra]
    for name in (name for name, *_ in fields if name in own_fields):
        raise ValueError(
            f"experiment() has a parameter '{name}', which is an option of {prog}; give it another "
            "name"
        )
    hints = get_type_hints(kind, include_extras=True)
    fields += [(field.name, hints[field.name], field) for field in dataclasses.fields(kind)]
    # tyro reads help texts from the source of `kind`, so the whole class derives from it.
    whole = dataclasses.make_dataclass("Options", fields, bases=(kind,), frozen=True)
    flags = [f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(whole)]

    def refuse(event: events.ParseErrorEvent) -> NoReturn:
        lists = f"`{prog.partition(' [')[0]} --help` lists all options"
        raise ValueError(f"{_explain(event, flags, arguments)}; {lists}")

    with events.on_parse_error(refuse):
        options: Any = tyro.cli(
            whole,
            args=arguments,
            prog=prog,
            description=description,
            config=(tyro.conf.DisallowNone,),
        )
    for name, hint in hints.items():
        value = getattr(options, name)
        for allowed in (each for each in get_args(hint) if isinstance(each, Interval)):
            if value is not None and not allowed.ge <= value <= allowed.le:
                low, high = (f"{end:,}" for end in (allowed.ge, allowed.le))
                flag = name.replace("_", "-")
                raise ValueError(f"--{flag} {value}: allowed is {low} to {high}")
    return options


def _explain(event: events.ParseErrorEvent, flags: list[str], given: list[str]) -> str:
    """What is wrong, the value, what is allowed and what was probably meant."""
    if isinstance(event, events.UnrecognizedArgs):
        return f"unrecognized: {' '.join(event.tokens)}{_hint(event.tokens, flags, given)}"
    if isinstance(event, events.MissingArgs):
        missing = ", ".join(_flag(each.arg) for each in event.missing_arguments)
        return f"{missing}: needed, and not given"
    if isinstance(event, events.BadValue):
        return f"{_flag(event.argument)}: needs a value"
    if isinstance(event, events.InvalidChoice):
        words = _choices(event.argument.field.type_stripped)
        hint = did_you_mean(event.value, words)
        return f"{_flag(event.argument)} {event.value}: allowed are {', '.join(words)}{hint}"
    if isinstance(event, events.InstantiationFailure) and event.argument is not None:
        # Every parser names the text that it cannot read last, in quotes.
        value = re.findall(r"'([^']*)'", event.message)[-1:]
        kind, flag = event.argument.field.type_stripped, _flag(event.argument)
        text, is_whole = printable(" ".join(value)), "int" in str(kind)
        allowed = ", ".join([*_choices(kind), "a whole number" if is_whole else "a number"])
        is_list = "," in text and get_origin(kind) is tuple
        hint = f"; write several as {flag} {text.replace(',', ' ')}" if is_list else ""
        return f"{flag} {text}: allowed is {allowed}{hint}"
    return f"{type(event).__name__}: this combination of options is not allowed"


def _hint(tokens: Sequence[str], flags: list[str], given: list[str]) -> str:
    """What was probably meant where a word is no option."""
    word = next((token.partition("=")[0] for token in tokens if token.startswith("--")), None)
    if word is None:
        before = given[: given.index(tokens[0])]
        if options := [each for each in before if each.startswith("--")]:
            return f"; {options[-1].partition('=')[0]} takes no further value"
        if "--model-args" in flags and "=" in tokens[0]:
            return f"; an argument of the model goes behind --model-args, as {tokens[0]}"
        return "; no name is needed here"
    if word in flags:
        return f"; it comes first, without {word}"
    # Without the dashes, which all names have in common.
    if near := nearest(word[2:], [flag[2:] for flag in flags]):
        return f"; did you mean '--{near}'?"
    if "--only" in flags and (field := nearest(word[2:].replace("-", "_"), FILTERS)):
        value = tokens[0].partition("=")[2] or "".join(tokens[1:2]) or "VALUE"
        is_of_sweep = field in [parameter.name for parameter in find("sweep").parameters]
        others = f", `repro run sweep --{field.replace('_', '-')}` measures others"
        return f"; --only {field}={value} chooses among its runs{others * is_of_sweep}"
    if "--model-args" in flags:
        return f"; an argument of the model goes behind --model-args, as {word[2:]}=..."
    return ""


def _flag(argument: Any) -> str:
    name = argument.lowered.name_or_flags[0]
    return name if name.startswith("-") else f"{name.upper()}, which comes first"


def _choices(annotation: Any) -> list[str]:
    """The words of all Literals in a type, in the order of their definition."""
    if get_origin(annotation) is Literal:
        return [str(word) for word in get_args(annotation)]
    return [word for part in get_args(annotation) for word in _choices(part)]


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
    return printable(
        f"{error.filename or 'the disk'}: {error.strerror or type(error).__name__}; {remedy} "
        "choose another folder with --results or --plots"
    )
