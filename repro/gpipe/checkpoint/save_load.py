"""Checkpoints of a training run: the unsplit model's keys, saved stage by stage, for any K.

Each stage writes a file with a new name. Then the first stage replaces the index, in one rename,
and deletes the files that the index does not name. If anything dies meanwhile, the folder still
holds one whole checkpoint.
"""

import copy
import socket
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from torch import Tensor, nn
from torch.optim import Optimizer

from repro.gpipe.checkpoint import files, optimizer_state
from repro.gpipe.checkpoint.files import Index, Part
from repro.gpipe.core.layers import names
from repro.gpipe.errors import is_refusal
from repro.gpipe.exact.nonfinite import refuse_nonfinite
from repro.io.untrusted import refuse_links, short

Gather = Callable[[Any], list[Any]]
T = TypeVar("T")


def save(
    folder: Path,
    *,
    rank: int,
    gather: Gather,
    module: nn.Sequential,
    layers: Sequence[str],
    misfit: str = "",
    optimizer: Optimizer | None,
    step: int,
    extra: Mapping[str, Any] | None = None,
    allow_nonfinite: bool = False,
    writes: bool = True,
) -> None:
    """Write a checkpoint in place of the former one; call it on every stage of every replica.

    `gather` takes one small object of each stage and gives those of all, in order. `module` has
    this stage's layers by their names in the unsplit model, and `layers` are the names of all.
    `misfit` is the reason why these are not the trained layers, or empty. Of all replicas the
    first one `writes`.
    """
    where = f"checkpoint {folder}"
    path = folder / f"stage{rank}-{uuid4().hex}.pt"  # another name for each save

    def write() -> Part | None:
        if not writes:
            return None
        # All checks come before anything is written.
        refuse_links(folder, folder / files.INDEX, *folder.glob(".index*"), *folder.glob("stage*"))
        if misfit:
            raise ValueError(misfit)
        if optimizer is not None:
            optimizer_state.refuse_no_optimizer(optimizer)
        _check_extra(extra)
        if not allow_nonfinite:
            refuse_nonfinite(module, optimizer)
        return files.write_part(path, module, optimizer)

    def write_index() -> None:
        if writes and rank == 0:
            files.commit(path.parent, [part for part in parts if part], layers, step, extra)

    parts = together(where, rank, gather, write, undo=path)
    together(where, rank, gather, write_index, undo=path)


def load(
    folder: Path,
    *,
    rank: int,
    gather: Gather,
    module: nn.Sequential,
    layers: Sequence[str],
    optimizer: Optimizer | None = None,
) -> Index:
    """Load a checkpoint of any K into this stage, in place and bit for bit; returns its index.

    Call it on every stage of every replica. All of them check what they need before any of them
    changes something. Without an optimizer its state is not loaded.
    """
    where = f"checkpoint {folder}"
    loaded: list[tuple[Index, dict[str, Any], dict[str, Any] | None]] = []

    def check() -> str:
        loaded.append(_check_all(folder, module, layers, optimizer))
        return loaded[0][0].digest

    if len(set(together(where, rank, gather, check))) > 1:
        raise ValueError(
            f"{where}: the stages see different checkpoints there; all stages need one shared "
            "folder"
        )
    index, values, state = loaded[0]
    module.load_state_dict(values)
    if optimizer is not None and state is not None:
        optimizer.load_state_dict(state)
    return index


def _check_all(
    folder: Path, module: nn.Sequential, layers: Sequence[str], optimizer: Optimizer | None
) -> tuple[Index, dict[str, Any], dict[str, Any] | None]:
    """The index, and what a stage loads of the model's and the optimizer's state, if it fits."""
    index = files.read_index(folder)
    if index.layers != list(layers):
        raise ValueError(
            f"checkpoint {folder}: it has {_describe_layers(index.layers)}, and this model has "
            f"{_describe_layers(layers)}; build the model that was saved"
        )
    parts = [
        files.read_part(folder, index, name)
        for name, file in index.files.items()
        if not set(file.layers).isdisjoint(names(module))
    ]
    saved = {key: value for part in parts for key, value in part["model"].items()}
    values = own_part(saved, module, layers, f"checkpoint {folder}", exact=True)
    if optimizer is None:
        return index, values, None
    optimizer_state.refuse_no_optimizer(optimizer)
    name = type(optimizer).__qualname__
    if index.optimizer != name:
        saved = f"with {index.optimizer}" if index.optimizer else "without an optimizer"
        raise ValueError(
            f"checkpoint {folder}: saved {saved}, not {name}; load it as saved, or optimizer=None"
        )
    states = [part["optimizer"] for part in parts if part["optimizer"] is not None]
    return index, values, optimizer_state.positional_state(states, optimizer, module)


def whole_state_dict(folder: Path) -> dict[str, Any]:
    """The unsplit model's state dict, in layer order and on the CPU; needs no other process."""
    folder = Path(folder)
    index = files.read_index(folder)
    parts = [copy.deepcopy(files.read_part(folder, index, file)["model"]) for file in index.files]
    values = {key: value for part in parts for key, value in part.items()}
    # A file may hold the layers of several stages, between which those of other files belong.
    position = {name: n for n, name in enumerate(index.layers)}
    return dict(sorted(values.items(), key=lambda item: position[item[0].split(".")[0]]))


def own_part(
    saved: Mapping[str, Any],
    module: nn.Sequential,
    layers: Collection[str],
    source: str = "state_dict",
    *,
    exact: bool = False,
) -> dict[str, Any]:
    """The values of a stage's keys among those of the unsplit model.

    Raises a ValueError unless keys and shapes fit the stage, and dtypes too if `exact`.
    """
    needed = module.state_dict()
    for key, own in needed.items():
        if key not in saved:
            raise ValueError(
                f"{source}: no {key}; the first key there is {next(iter(saved), None)}; build the "
                "same layers"
            )
        value = saved[key]
        if not isinstance(own, Tensor):  # the extra state of a module
            continue
        fits = isinstance(value, Tensor) and value.shape == own.shape
        if not fits or (exact and value.dtype != own.dtype):
            raise ValueError(
                f"{source}: {key} is {_describe(value)}, this model's is {_describe(own)}"
            )
    of_stage = names(module)
    for key in saved:
        layer = key.split(".")[0]
        if key not in needed and (layer in of_stage or layer not in layers):
            raise ValueError(f"{source}: unexpected key {key}")
    return {key: saved[key] for key in needed}


def together(
    where: str, rank: int, gather: Gather, call: Callable[[], T], undo: Path | None = None
) -> list[T]:
    """Return the call's result on each stage; if it raised on one, all raise and name that stage.

    Then the file to `undo` is deleted. It stays if another stage died, which may have committed it.
    """
    result, failure, cause = None, None, None
    try:
        result = call()
    except Exception as error:  # of any kind, since the other stages must not wait for ever
        cause = None if is_refusal(error) or isinstance(error, OSError) else error
        failure = _describe_failure(error, where, rank)
    outcomes = gather((result, failure))
    failures = [failure for _, failure in outcomes if failure is not None]
    if failures:
        if undo is not None:
            with suppress(OSError):
                undo.unlink(missing_ok=True)
        kind, message = failures[0]
        raise kind(message) from cause
    return [result for result, _ in outcomes]


def _describe_failure(error: Exception, where: str, rank: int) -> tuple[type[Exception], str]:
    """The error that all stages raise for one of this stage: its type and its message."""
    # torch.save raises a RuntimeError while it handles the OSError of a full disk.
    hidden = None if error.__suppress_context__ else error.__context__
    if isinstance(hidden, OSError):
        error = hidden
    kind = OSError if isinstance(error, OSError) else ValueError
    text = files.one_line(error).removeprefix(f"{where}: ").removeprefix(f"{where}/")
    return kind, f"{where}: stage {rank} on {socket.gethostname()}: {text}"


def _check_extra(value: object) -> None:
    """Raise a ValueError unless JSON gives a value back as it is, but for lists in place of tuples.

    A MultiStepLR that got its milestones back with strings as keys would never reach one.
    """
    members: Iterable[object] = ()
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        members = value.values()
    elif isinstance(value, list | tuple):
        members = value
    elif value is not None and not isinstance(value, bool | int | float | str):
        raise ValueError(
            f"extra: JSON does not hold {short(value)}; use numbers, strings, lists, and dicts "
            "with strings as keys, or make it anew after load"
        )
    for member in members:
        _check_extra(member)


def _describe(value: object) -> str:
    if not isinstance(value, Tensor):
        return "no tensor"
    return f"{str(value.dtype).removeprefix('torch.')} {[*value.shape]}"


def _describe_layers(layers: Sequence[str]) -> str:
    return f"{len(layers)} layers ({layers[0]} to {layers[-1]})" if layers else "no layers"
