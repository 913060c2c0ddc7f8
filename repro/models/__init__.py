"""The models by name, each a sequence of layers: `build("amoebanet-d", L=6, D=32)`.

`build("import:package.module:function")` builds a model of your own, see `own`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from repro.io.untrusted import did_you_mean
from repro.models.amoebanet import amoebanet
from repro.models.arguments import check_names, check_types
from repro.models.model import Model
from repro.models.own import own
from repro.models.timed import timed
from repro.models.timm_models import is_timm_model, timm_model
from repro.models.transformer import transformer
from repro.models.translation import translation
from repro.models.unet import unet

__all__ = ["Model", "build"]

BUILDERS: dict[str, Callable[..., Model]] = {
    "amoebanet-b": partial(amoebanet, "b", D=512, image=480),
    "amoebanet-d": partial(amoebanet, "d"),
    "transformer": transformer,
    "translation": translation,
    "timed": timed,
    "unet": unet,
}
# Prefix of a name -> the builder; its first argument is what follows the colon.
PREFIXES: dict[str, Callable[..., Model]] = {"timm": timm_model, "import": own}


def build(name: str, /, **args: Any) -> Model:
    """Build a model by its name; by default with the paper's sizes.

    A wrong name or argument, or a user's function that fails, is a ValueError of one line.
    """
    builder = _builder(name)
    check_names(name, builder, args)
    check_types(builder, args)
    return builder(**args)


def _builder(name: str) -> Callable[..., Model]:
    prefix, colon, rest = name.partition(":")
    if colon and prefix in PREFIXES:
        return partial(PREFIXES[prefix], rest)
    if name in BUILDERS:
        return BUILDERS[name]
    known = [*BUILDERS, f"timm:{name}"] if is_timm_model(name) else BUILDERS
    raise ValueError(
        f"model={name!r}: allowed are {', '.join(BUILDERS)}, timm:NAME and "
        f"import:package.module:function{did_you_mean(name, known)}"
    )
