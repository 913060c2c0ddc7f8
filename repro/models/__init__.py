"""The models, each a sequence of layers, by name: `build("amoebanet-d", L=6, D=32)`.

Bring your own with `build("import:package.module:function")`, see `own`.
"""

import inspect
from collections.abc import Callable
from difflib import get_close_matches
from functools import partial
from typing import Any

from repro.models.amoebanet import amoebanet
from repro.models.arguments import UnusableError, check_names, check_types
from repro.models.model import Model, require
from repro.models.own import own
from repro.models.own import parameters as own_parameters
from repro.models.timed import timed
from repro.models.timm_models import is_timm_model, timm_model
from repro.models.transformer import transformer

__all__ = ["Model", "build", "names", "parameters"]

BUILDERS: dict[str, Callable[..., Model]] = {
    "amoebanet-b": partial(amoebanet, "b", D=512, image=480),
    "amoebanet-d": partial(amoebanet, "d"),
    "transformer": transformer,
    "timed": timed,
}
MOST_LAYERS = 2**16  # as many as L may ask for: their list is made before anything is known to fit
# What follows the colon is the builder's first argument.
PREFIXES: dict[str, Callable[..., Model]] = {"timm": timm_model, "import": own}


def names() -> list[str]:
    """What `build` takes; angle brackets stand for a choice of the user's."""
    return [*BUILDERS, "timm:<timm's name>", "import:<package.module>:<function>"]


def build(name: str, /, **args: Any) -> Model:
    """The model of that name; args are its builder's, by default the paper's sizes.

    Raises:
        UnusableError: unknown name or argument, or a user's function that fails; one line.
        ValueError: a value that is not allowed; one line.
    """
    builder = _builder(name)
    check_names(name, builder, args)
    check_types(builder, args)
    if name in BUILDERS and "L" in args:
        require(args["L"] <= MOST_LAYERS, "L", args["L"], f"up to {MOST_LAYERS}", "L=48")
    return builder(**args)


def parameters(name: str) -> dict[str, inspect.Parameter]:
    """What the model's own builder takes, by name; errors as of `build`."""
    prefix, _, rest = name.partition(":")
    if prefix == "import":
        return own_parameters(rest)
    return dict(inspect.signature(_builder(name)).parameters)


def _builder(name: str) -> Callable[..., Model]:
    """The function behind a name."""
    prefix, colon, rest = name.partition(":")
    if colon and prefix in PREFIXES:
        return partial(PREFIXES[prefix], rest)
    if name in BUILDERS:
        return BUILDERS[name]
    near = (
        [f"import:{name}"] if colon and prefix and rest else get_close_matches(name, BUILDERS, n=1)
    )
    if not near and is_timm_model(name):
        near = [f"timm:{name}"]
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise UnusableError(f"model={name!r}: allowed are {', '.join(names())}{hint}")
