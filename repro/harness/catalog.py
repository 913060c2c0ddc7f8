"""Finds experiments: experiments/<name>/runs.py, or a user's own .py file.

Each .py file has one function `experiment(scale=..., ...) -> Experiment`. Its further parameters
become options of `repro run NAME`. A user's file is code, which is run. Nothing here imports torch.
"""

import importlib.util
import inspect
import json
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import tyro

from repro.harness.spec import SIZES_AT, Experiment, Scale, slug
from repro.io.untrusted import did_you_mean, from_json, message

_HOME = Path(__file__).resolve().parents[1] / "experiments"
# The order of experiments on the page and, with `runner.in_parts`, of their measurement: first what
# decides most claims of the paper in the least time, then its trainings, then what goes beyond it,
# the shortest first.
ORDER = (
    *("consistency", "table1", "figure2", "bubble", "table2", "table3", "breakdown"),
    *("table4", "table5", "figure1", "figure3"),
    *("advise", "costs", "runtime", "two_gpu_demo", "methods", "peers"),
)


@dataclass(frozen=True)
class Source:
    """Where an experiment is from, and how a user gets it."""

    command: str  # what a user types after `repro run`: a name, a path, or more
    function: Callable[..., Any]  # scale and further parameters -> Experiment
    parameters: tuple[inspect.Parameter, ...] = ()  # those besides the scale

    def build(self, scale: Scale) -> Experiment:
        """The experiment at a scale; of those of one GPU only at what its `minutes` name.

        Where they do not, it has the sizes of another scale.
        """
        experiment = self.function(scale=SIZES_AT.get(scale, scale))
        if not isinstance(experiment, Experiment):
            raise ValueError(
                f"{self.command}: experiment() returned {type(experiment).__name__}, allowed is an "
                "Experiment; see experiments/sweep/runs.py for one"
            )
        if scale in SIZES_AT and scale in experiment.minutes:
            return self.function(scale=scale)
        return experiment

    @property
    def accumulate(self) -> bool:
        """Whether results add up over commands, which may have different parameters."""
        return bool(self.parameters)

    @property
    def about(self) -> str:
        """The function's docstring without its arguments."""
        return (inspect.getdoc(self.function) or "").partition("Args:")[0].strip()

    def flags(self) -> list[tuple[str, Any, Any]]:
        """(name, type, default) of each parameter; its text in the docstring becomes the help."""
        from docstring_parser import parse

        documented = parse(self.function.__doc__ or "").params
        help_of = {p.arg_name: (p.description or "").replace("\n", " ") for p in documented}
        result = []
        for p in self.parameters:
            kind, default, metavar = p.annotation, p.default, None
            if _is_mapping(kind):
                kind, default, metavar = tuple[str, ...], (), "NAME=VALUE ..."
            argument = tyro.conf.arg(help=help_of.get(p.name, ""), metavar=metavar)
            default = tyro.MISSING if default is p.empty else default
            result.append((p.name, Annotated[kind, argument], default))
        return result

    def given(self, values: dict[str, Any]) -> "Source":
        """The same with values of its parameters; texts NAME=VALUE become a dict.

        The command is recorded, so an absolute path loses its folder.
        """
        values = dict(values)
        words = [Path(self.command).name if Path(self.command).is_absolute() else self.command]
        for p in self.parameters:
            value = values.get(p.name, p.default)
            if _is_mapping(p.annotation) and isinstance(value, tuple):
                read = pairs(p.name, value)
                value = values[p.name] = read if read or p.default is p.empty else p.default
            if value != p.default:
                words += [f"--{p.name.replace('_', '-')}", *_words(value)]
        function = partial(self.function, **values)
        return replace(self, command=shlex.join(words), function=function)


def in_order(names: Iterable[str]) -> list[str]:
    """All of `ORDER`, then the others of these names in the order of the alphabet."""
    return [*dict.fromkeys([*ORDER, *sorted(names)])]


def names() -> dict[str, Path]:
    """Experiments that come with the project, in the order in which they run: name -> file."""
    files = {path.parent.name: path for path in _HOME.glob("*/runs.py")}
    return {name: files[name] for name in in_order(files)}


def find(name: str) -> Source:
    """The experiment of a name, or of a file whose path ends in .py."""
    known = names()
    path = known.get(name, Path(name))
    if path.suffix != ".py":
        raise ValueError(
            f"experiment = '{name}': allowed are {', '.join(known)}, or the path of a .py "
            f"file{did_you_mean(name, known)}; `repro list` describes them"
        )
    if not path.is_file():
        raise ValueError(f"experiment = '{name}': no such file; give the path of a .py file")
    return _load(path, name)


def pairs(field: str, texts: tuple[str, ...]) -> dict[str, Any]:
    """`("L=3", "name=value")` -> {"L": 3, "name": "value"}: JSON values, else texts."""
    result = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise ValueError(
                f"{field} = '{text}': allowed is NAME=VALUE; try --{field.replace('_', '-')} L=3 "
                "D=16"
            )
        try:
            result[name] = from_json(value)
        except ValueError:
            result[name] = value
    return result


def _load(path: Path, name: str) -> Source:
    module_name = f"repro_experiment_{slug(path.stem).replace('-', '_').replace('.', '_')}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ValueError(
            f"{path}: {type(error).__name__}: {message(error)}; the file must import without an "
            "error"
        ) from error
    function: Any = getattr(module, "experiment", None)
    is_function = inspect.isfunction(function)
    parameters = inspect.signature(function, eval_str=True).parameters if is_function else {}
    if "scale" not in parameters:
        raise ValueError(
            f"{path}: no function experiment(scale) in it; see experiments/sweep/runs.py for one"
        )
    others = tuple(p for p in parameters.values() if p.name != "scale")
    return Source(name, function, others)


def _words(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [f"{k}={v if isinstance(v, str) else json.dumps(v)}" for k, v in value.items()]
    return [str(part) for part in (value if isinstance(value, tuple | list) else [value])]


def _is_mapping(annotation: Any) -> bool:
    parts = (annotation, get_origin(annotation))
    return dict in parts or any(map(_is_mapping, get_args(annotation)))
