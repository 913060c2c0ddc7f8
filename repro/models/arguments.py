"""Checks of a model's arguments against the signature of its builder; one line per mistake."""

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from annotated_types import Interval

from repro.io.untrusted import did_you_mean

# Ranges of arguments. The list of layers is made before it is known what fits, so L has a limit.
Layers = Annotated[int, Interval(ge=1, le=2**16)]
Count = Annotated[int, Interval(ge=1)]
Probability = Annotated[float, Interval(ge=0, lt=1)]
Classes = Annotated[int, Interval(ge=2, le=2**24)]


class UnusableError(ValueError):
    """A model that cannot be used with any arguments: it is unknown or broken. One line."""


def check_names(
    model: str,
    builder: Callable[..., Any],
    arguments: Mapping[str, Any],
    also: tuple[str, ...] = (),
) -> None:
    """Raise an UnusableError if an argument is unknown, or a required one is missing.

    The message names the model, and `also` arguments that are not the builder's.
    """
    parameters = inspect.signature(builder).parameters.values()
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    unknown = [name for name in arguments if name not in named]
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters):
        name = unknown[0]
        hint = did_you_mean(name, named)
        allowed = ", ".join(dict.fromkeys((*named, *also))) or "none"
        raise UnusableError(
            f"{name}={arguments[name]!r}: {model} has no such argument; allowed are {allowed}{hint}"
        )
    for name, parameter in named.items():
        if parameter.default is parameter.empty and name not in arguments:
            raise UnusableError(f"{name}: {model} needs this argument; try {name}=...")


def check_types(builder: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    """Raise a ValueError if an argument is not of its annotated type and range.

    The check is pydantic's strict one: an int is allowed for a float, but neither a bool nor "6"
    for an int.
    """
    from pydantic import TypeAdapter, ValidationError

    parameters = inspect.signature(builder, eval_str=True).parameters
    for name in arguments.keys() & parameters.keys():
        parameter = parameters[name]
        try:
            TypeAdapter(parameter.annotation).validate_python(arguments[name], strict=True)
        except ValidationError as error:
            messages = [mistake["msg"] for mistake in error.errors()]
            reasons = dict.fromkeys(message[0].lower() + message[1:] for message in messages)
            raise ValueError(
                f"{name}={arguments[name]!r}: {' or '.join(reasons)}; try "
                f"{name}={parameter.default!r}, the default"
            ) from None
