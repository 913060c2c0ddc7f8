"""Checks of a model's arguments against the signature of its builder; one line per mistake."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

from annotated_types import Interval

from repro.io.untrusted import did_you_mean

# Ranges of arguments. L has a limit, since the list of layers is made before any check of memory.
Layers = Annotated[int, Interval(ge=1, le=2**16)]
Count = Annotated[int, Interval(ge=1)]
Probability = Annotated[float, Interval(ge=0, lt=1)]
Classes = Annotated[int, Interval(ge=2, le=2**24)]


def check_names(
    model: str, builder: Callable[..., Any], given: Mapping[str, Any], also: Iterable[str] = ()
) -> None:
    """Raise a ValueError if an argument is unknown or a required argument is missing.

    The message names the model, and lists the builder's arguments and those in `also`.
    """
    parameters = inspect.signature(builder).parameters.values()
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    unknown = [name for name in given if name not in named]
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters):
        name, allowed = unknown[0], ", ".join(dict.fromkeys((*named, *also))) or "none"
        raise ValueError(
            f"{name}={given[name]!r}: {model} has no such argument; allowed are {allowed}"
            f"{did_you_mean(name, named)}"
        )
    for name, parameter in named.items():
        if parameter.default is parameter.empty and name not in given:
            raise ValueError(f"{name}: {model} needs this argument; try {name}=...")


def check_types(builder: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Raise a ValueError if an argument does not have its annotated type and range.

    Types are those of JSON: an int is allowed for a float, but neither a bool nor "6" for an int.
    """
    from pydantic import TypeAdapter, ValidationError

    from repro.io.explain import demand

    parameters = inspect.signature(builder, eval_str=True).parameters
    for name in given.keys() & parameters.keys():
        parameter = parameters[name]
        try:
            TypeAdapter(parameter.annotation).validate_python(given[name], strict=True)
        except ValidationError as error:
            raise ValueError(
                f"{name}={given[name]!r}: must {demand(error.errors())}; try "
                f"{name}={parameter.default!r}, the default"
            ) from None
