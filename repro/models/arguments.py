"""Model arguments held against the signature of what builds the model; one line for each mistake."""

import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any


class UnusableError(ValueError):
    """A model that no value of its arguments makes usable: unknown, or broken. One line."""


def check_names(
    model: str,
    builder: Callable[..., Any],
    arguments: Mapping[str, Any],
    also: tuple[str, ...] = (),
) -> None:
    """Raise an UnusableError if an argument has no parameter, or one that is needed is missing.

    Args:
        model: its name, for the message.
        builder: what will be called.
        arguments: what it will be called with, by name.
        also: names that the model takes besides the builder's.
    """
    parameters = inspect.signature(builder).parameters.values()
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    unknown = [name for name in arguments if name not in named]
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters):
        name = unknown[0]
        near = get_close_matches(name, named, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        allowed = ", ".join(dict.fromkeys((*named, *also))) or "none"
        raise UnusableError(
            f"{name}={arguments[name]!r}: {model} has no such argument; allowed are {allowed}{hint}"
        )
    for name, parameter in named.items():
        if parameter.default is parameter.empty and name not in arguments:
            raise UnusableError(f"{name}: {model} needs this argument; try {name}=...")


def check_types(builder: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Raise a ValueError if an argument is not what its annotation says.

    Strict, as pydantic has it: an int will do for a float, but no bool for an int and no "6" for a
    6.
    """
    from pydantic import TypeAdapter, ValidationError

    parameters = inspect.signature(builder, eval_str=True).parameters
    for name in arguments.keys() & parameters.keys():
        parameter = parameters[name]
        try:
            TypeAdapter(parameter.annotation).validate_python(arguments[name], strict=True)
        except ValidationError as error:
            wants = " or ".join(
                dict.fromkeys(e["msg"][0].lower() + e["msg"][1:] for e in error.errors())
            )
            tip = f"{name}={parameter.default!r}, the default"
            raise ValueError(f"{name}={arguments[name]!r}: {wants}; try {tip}") from None
