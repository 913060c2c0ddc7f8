"""A user's own model: `import:package.module:function`.

The function is called with the model's arguments. It returns one of:
- a sequence of layers (nn.Sequential, or a list or tuple of nn.Modules or zero-argument factories),
  which is trained on the digits. With factories, a rank makes only its own layers;
- a `Model`, which has its own data and loss.

Modules are found as Python finds them, with the current directory first.
"""

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from repro.data import images
from repro.io.untrusted import did_you_mean, message
from repro.models.arguments import Classes, Count, UnusableError, check_names
from repro.models.model import Model, digits

FORM = "import:package.module:function"


def own(path: str, /, image: Count = 32, num_classes: Classes = 10, **arguments: Any) -> Model:
    """The model that the function at `path` (package.module:function) returns.

    Height and width of the digits and the number of classes are passed to the function if it has
    these parameters. Where there are fewer than ten classes, `Model.batch` counts the digits modulo
    their number.
    """
    function = _function(path)
    accepted = inspect.signature(function).parameters
    of_data = {"image": image, "num_classes": num_classes}
    arguments |= {name: value for name, value in of_data.items() if name in accepted}
    check_names(f"import:{path}", function, arguments, also=tuple(of_data))
    # The function may return modules with weights, which must be the same in every process.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        returned = _call(path, function, arguments)
    if isinstance(returned, Model):
        return returned
    return Model(
        name=f"import:{path}",
        layers=_layers(path, returned),
        batch=partial(digits, image, num_classes),
        loss=functional.cross_entropy,
        unit="images/s",
        labels={"data": images.LABEL},
    )


def parameters(path: str) -> dict[str, inspect.Parameter]:
    """Parameters of the function at `path`, by name."""
    return dict(inspect.signature(_function(path)).parameters)


def _function(path: str) -> Callable[..., Any]:
    wrong = f"model='import:{path}'"
    module_name, _, name = path.partition(":")
    if not (module_name and name) or module_name.startswith("."):
        raise UnusableError(
            f"{wrong}: write {FORM}, with a colon before the function and the module's name in "
            "full; try import:mymodel:layers"
        )
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a script without a guard may end the whole program
        # An import that fails inside the user's module is that module's own error.
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module_name}.".startswith(f"{missing}."):
            raise UnusableError(
                f"{wrong}: no module {missing} in {folder} nor installed; start in the directory "
                "that holds it"
            ) from None
        raise UnusableError(
            f"{wrong}: importing {module_name} raised {_describe(error)}"
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        public = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        hint = did_you_mean(name, public)
        raise UnusableError(f"{wrong}: module {module_name} has no function {name}{hint}")
    return function


def _call(path: str, function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Call the user's function.

    A ValueError is its own refusal, or stands for the errors by which functions and torch's layers
    refuse sizes. An UnusableError stands for any other error.
    """
    values = ", ".join(f"{name}={value!r}"[:60] for name, value in arguments.items())
    call = f"model='import:{path}'" + (f" with {values}" if values else "")
    try:
        return function(**arguments)
    except ValueError:
        raise
    except (Exception, SystemExit) as error:
        refuses = isinstance(error, AssertionError | RuntimeError | TypeError)
        kind = ValueError if refuses else UnusableError
        raise kind(f"{call}: the function raised {_describe(error)}") from error


def _describe(error: BaseException) -> str:
    """An error and the user's line that led to it: `KeyError: 'a' (mymodel.py, line 12)`."""
    text = f"{type(error).__name__}: {message(error)}"[:200].removesuffix(": ")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
    frames = [f for f in frames if not f.filename.startswith(("<", importlib.__file__))]
    if not frames or isinstance(error, SyntaxError):  # a SyntaxError names its place itself
        return text
    last = [f for f in frames if f.filename == frames[0].filename][-1]
    return f"{text} ({Path(last.filename).name}, line {last.lineno})"


def _layers(path: str, returned: object) -> list[Any]:
    """Check that the function has returned modules or zero-argument factories."""
    problem = ""
    layers: list[Any] = []
    if isinstance(returned, nn.Sequential | nn.ModuleList | list | tuple):
        layers = list(returned)
        problem = "no layers" if not layers else ""
        for index, layer in enumerate(layers):
            if not callable(layer):
                problem = f"an object of type {type(layer).__name__} as layer {index}"
    else:
        problem = f"an object of type {type(returned).__name__}"
    if problem:
        raise ValueError(
            f"model='import:{path}': the function returned {problem}; allowed is nn.Sequential, or "
            "a list of nn.Modules or zero-argument factories"
        )
    return layers
