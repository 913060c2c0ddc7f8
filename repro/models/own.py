"""A user's own model: `import:package.module:function`.

The function is called with the model's arguments. It returns one of:
- a sequence of layers (nn.Sequential, or a list or tuple of nn.Modules or zero-argument factories),
  which is trained on the digits. With factories, a rank makes only its own layers;
- a `Model`, which has its own data and loss. Its name is replaced by its path.

Python looks for modules in the current directory first.
"""

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from repro.gpipe.core.layers import as_layers
from repro.io.untrusted import did_you_mean, message
from repro.models.arguments import Classes, Count, check_names
from repro.models.model import Model, of_images

# What a user may not know whose layers fail on their first mini-batch.
OWN_DATA = "layers in a list get images; for tokens return a `repro.models.Model`"


def own(path: str, /, image: Count = 32, num_classes: Classes = 10, **arguments: Any) -> Model:
    """The model that the function at `path` (package.module:function) returns.

    The function gets the height and width of the digits, and the number of classes, if it has these
    parameters.
    """
    function = function_at(path)
    accepted = inspect.signature(function).parameters
    of_data = {"image": image, "num_classes": num_classes}
    arguments |= {name: value for name, value in of_data.items() if name in accepted}
    check_names(f"import:{path}", function, arguments, also=tuple(of_data))
    # The function may return modules with weights. They must be the same in every process.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        values = ", ".join(f"{name}={value!r}"[:60] for name, value in arguments.items())
        call = f"model='import:{path}'" + (f" with {values}" if values else "")
        with _explained(f"{call}: the function"):
            returned = function(**arguments)
    if isinstance(returned, Model):
        unit = f"{returned.unit.removesuffix('/s')}/s"
        return replace(returned, name=f"import:{path}", unit=unit)
    try:
        layers = as_layers(returned)
    except ValueError as error:
        raise ValueError(f"model='import:{path}': {error}") from None
    return of_images(f"import:{path}", layers, image, num_classes)


def function_at(path: str) -> Callable[..., Any]:
    """The user's function at `path`; a ValueError with the reason if there is none."""
    wrong = f"model='import:{path}'"
    module_name, _, name = path.partition(":")
    dotted = module_name.removesuffix(".py").replace("/", ".").strip(".")
    if not (module_name and name) or dotted != module_name:
        raise ValueError(
            f"{wrong}: write import:package.module:function, with a colon before the function; try "
            f"import:{dotted or 'mymodel'}:{name or 'layers'}"
        )
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    with _explained(f"{wrong}: importing {module_name}"):
        if importlib.util.find_spec(module_name) is None:
            raise ValueError(
                f"{wrong}: no module {module_name} in {folder} nor installed; start in the "
                "directory that holds it"
            )
        module = importlib.import_module(module_name)
    function = getattr(module, name, None)
    if not callable(function):
        public = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        hint = did_you_mean(name, public)
        raise ValueError(f"{wrong}: module {module_name} has no function {name}{hint}")
    return function


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Turn an error of the user's module into a ValueError of one line; a ValueError stays."""
    try:
        yield
    except ValueError:
        raise
    except (Exception, SystemExit) as error:  # a script without a guard may exit
        raise ValueError(f"{what} raised {_describe(error)}") from error


def _describe(error: BaseException) -> str:
    """The error, and the user's line that raised it: `KeyError: 'a' (mymodel.py, line 12)`."""
    text = f"{type(error).__name__}: {message(error)}"[:200].removesuffix(": ")
    ours = ("<", __file__, importlib.__file__)
    frames = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in frames if not frame.filename.startswith(ours)]
    if not frames or isinstance(error, SyntaxError):  # a SyntaxError already names its line
        return text
    last = [f for f in frames if f.filename == frames[0].filename][-1]
    return f"{text} ({Path(last.filename).name}, line {last.lineno})"
