"""A training run on disk: the whole model under the unsplit model's keys, saved stage by stage, for any other K.

Each stage writes a file of a new name; then the first stage replaces the index, in one rename; then
the files that the index names no more are deleted. Whatever dies, and whenever, the folder holds
one whole checkpoint.
"""

import copy
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from torch import nn
from torch.optim import Optimizer

from repro.gpipe.checkpoint import optimizer_state
from repro.gpipe.checkpoint.files import (
    Index,
    Kind,
    Part,
    check_extra,
    commit,
    kind_of,
    new_file,
    one_line,
    read_index,
    read_part,
    tidy,
    write_part,
)
from repro.gpipe.core.layers import names
from repro.gpipe.exact.nonfinite import refuse_nonfinite

Gather = Callable[[Any], list[Any]]
T = TypeVar("T")


@dataclass(frozen=True)
class Restored:
    """What a checkpoint holds beside weights and optimizer state.

    Attributes:
        step: training steps done.
        extra: what the user added, as JSON keeps it: tuples are lists, and keys are strings.
    """

    step: int
    extra: dict[str, Any]


def save(
    folder: Path,
    *,
    rank: int,
    gather: Gather,
    module: nn.Sequential,
    misfit: str = "",
    optimizer: Optimizer | None,
    step: int,
    extra: Mapping[str, Any] | None = None,
    allow_nonfinite: bool = False,
) -> None:
    """Write a checkpoint in place of the one that is there; call it on every stage.

    Args:
        folder: seen by all stages; made if needed. Files that are not a checkpoint's are left
            alone.
        rank: j, this stage.
        gather: one small object of each stage -> those of all stages, in order.
        module: this stage's layers, by their names in the unsplit model.
        misfit: why these are not the layers that were trained, if they are not.
        optimizer: of their parameters, or None.
        step: training steps done.
        extra: what JSON can hold; that of the first stage is kept.
        allow_nonfinite: whether weights, running statistics and optimizer state may be inf or nan.

    Raises:
        OSError: on every stage if one cannot write; the checkpoint that was there stays.
        ValueError: likewise if a value cannot or must not be saved, or the stages see different
            folders.
    """
    where = f"checkpoint {folder}"
    own = new_file(Path(folder), rank)

    def write() -> Part:
        # Refused before anything is written.
        if misfit:
            raise ValueError(misfit)
        if optimizer is not None:
            optimizer_state.refuse_no_optimizer(optimizer)
        check_extra(extra)
        if not allow_nonfinite:
            refuse_nonfinite(module, optimizer)
        _refuse_other_keys(extra, "extra")
        return write_part(own, module, optimizer)

    parts = together(where, rank, gather, write, undo=own)
    new = partial(commit, own.parent, parts, step, extra) if rank == 0 else _nothing
    together(where, rank, gather, new, undo=own)
    together(where, rank, gather, partial(tidy, own.parent, parts) if rank == 0 else _nothing)


def load(
    folder: Path,
    *,
    rank: int,
    gather: Gather,
    module: nn.Sequential,
    layers: Sequence[str],
    optimizer: Optimizer | None = None,
) -> Restored:
    """Put a checkpoint of any K into this stage, in place and bit for bit.

    Call it on every stage of every replica. Nothing is changed on any stage before all of them have
    checked all that they need.

    Args:
        folder: what `save` wrote.
        rank: j, this stage.
        gather: one small object of each caller -> those of all callers, in order.
        module: this stage's layers, by their names in the unsplit model.
        layers: the names of all layers of the unsplit model, since a stage cannot miss what belongs
            to none.
        optimizer: of the same class as the saved one. None leaves the optimizer state where it is.

    Raises:
        ValueError: one line on every stage, if the checkpoint is damaged or incomplete, fits
            another model or optimizer, or is not the same one for all stages.
    """
    where = f"checkpoint {folder}"
    checked: list[_Checked] = []

    def check() -> str:
        checked.append(_check_all(Path(folder), module, layers, optimizer))
        return checked[0].index.digest

    if len(set(together(where, rank, gather, check))) > 1:
        different = "the stages see different checkpoints there"
        raise ValueError(f"{where}: {different}; all stages need one shared folder")
    (own,) = checked

    def apply() -> None:
        module.load_state_dict(own.values)
        if optimizer is not None and own.state is not None:
            optimizer.load_state_dict(own.state)

    together(where, rank, gather, apply)
    return Restored(own.index.step, own.index.extra)


@dataclass(frozen=True)
class _Checked:
    """What one stage takes from a checkpoint: its parts of the model's and the optimizer's state."""

    index: Index
    values: dict[str, Any]
    state: dict[str, Any] | None


def _check_all(
    folder: Path, module: nn.Sequential, layers: Sequence[str], optimizer: Optimizer | None
) -> _Checked:
    """Read what a stage needs; raises ValueError for whatever does not fit."""
    index = read_index(folder)
    if index.layers != list(layers):
        raise ValueError(
            f"checkpoint {folder}: it has {_counted(index.layers)}, and this model has "
            f"{_counted(layers)}; build the model that was saved"
        )
    kinds = {key: kind for file in index.files.values() for key, kind in file.kinds.items()}
    _check(kinds, module, layers, f"checkpoint {folder}", exact=True)
    own = module.state_dict().keys()
    # A file without keys belongs to no stage of this cut, so every stage checks that it is there.
    parts = [
        read_part(folder, index, name)
        for name, file in index.files.items()
        if own & file.kinds.keys() or not file.kinds
    ]
    values = {key: value for part in parts for key, value in part["model"].items() if key in own}
    state = None if optimizer is None else _optimizer_state(folder, index, parts, optimizer, module)
    return _Checked(index, values, state)


def whole_state_dict(folder: Path) -> dict[str, Any]:
    """The unsplit model's state dict, in layer order and on the CPU; needs no other process.

    Raises:
        ValueError: one line, if the checkpoint is damaged or incomplete.
    """
    folder = Path(folder)
    index = read_index(folder)
    parts = [copy.deepcopy(read_part(folder, index, file)["model"]) for file in index.files]
    return {key: value for part in parts for key, value in part.items()}


def own_part(
    state_dict: Mapping[str, Any], module: nn.Sequential, layers: Collection[str]
) -> dict[str, Any]:
    """This stage's part of the unsplit model's state dict.

    Args:
        state_dict: of the unsplit model.
        module: this stage's layers, by their names in the unsplit model.
        layers: the names of all layers of the unsplit model.

    Raises:
        ValueError: one line that names a key which is missing, of another shape, or of no such
            layer.
    """
    _check(
        {key: kind_of(value) for key, value in state_dict.items()},
        module,
        layers,
        "state_dict",
        exact=False,
    )
    return {key: state_dict[key] for key in module.state_dict()}


def together(
    where: str, rank: int, gather: Gather, call: Callable[[], T], undo: Path | None = None
) -> list[T]:
    """What the call returned on each stage that `gather` reaches; if it raised on one, all raise, naming that one.

    Then the file to `undo` is deleted; not so if another stage died, for it may have committed the
    file before.
    """
    result, failure, cause = None, None, None
    try:
        result = call()
    except Exception as error:  # of any kind: the other stages must not wait for ever
        context = None if error.__suppress_context__ else error.__context__
        full = context if isinstance(context, OSError) else error  # torch.save hides a full disk
        kind = OSError if isinstance(full, OSError) else ValueError
        text = one_line(full).removeprefix(f"{where}: ").removeprefix(f"{where}/")
        cause, failure = error, (kind, f"{where}: stage {rank} on {socket.gethostname()}: {text}")
    outcomes = gather((result, failure))
    failed = next((failure for _, failure in outcomes if failure is not None), None)
    if failed is not None:
        if undo is not None:
            with suppress(OSError):
                undo.unlink(missing_ok=True)
        raise failed[0](failed[1]) from cause
    return [result for result, _ in outcomes]


def _nothing() -> None:
    """What the other stages do while the first one works."""


def _refuse_other_keys(value: Any, where: str) -> None:
    """Raise a ValueError if a dict has a key that is no string: JSON would make it one.

    A MultiStepLR that got its milestones back as strings would never reach one.
    """
    if isinstance(value, Mapping):
        for key, part in value.items():
            if not isinstance(key, str):
                raise ValueError(
                    f"{where}: JSON turns its key {key!r} into a string; use strings as keys, or "
                    "leave the entry out and make it anew after load"
                )
            _refuse_other_keys(part, f"{where}[{key!r}]")
    elif isinstance(value, list | tuple):
        for part in value:
            _refuse_other_keys(part, where)


def _optimizer_state(
    folder: Path,
    index: Index,
    parts: Sequence[Mapping[str, Any]],
    optimizer: Optimizer,
    module: nn.Module,
) -> dict[str, Any]:
    optimizer_state.refuse_no_optimizer(optimizer)
    name = type(optimizer).__qualname__
    if index.optimizer != name:
        saved = f"with {index.optimizer}" if index.optimizer else "without an optimizer"
        raise ValueError(
            f"checkpoint {folder}: saved {saved}, not {name}; load it as saved, or optimizer=None"
        )
    states = [part["optimizer"] for part in parts if part["optimizer"] is not None]
    return optimizer_state.positional(states, optimizer, module)


def _check(
    found: Mapping[str, Kind],
    module: nn.Sequential,
    layers: Collection[str],
    source: str,
    *,
    exact: bool,
) -> None:
    """Raise a ValueError unless these keys fit the stage: shapes, and types too where `exact`."""
    needed = {key: kind_of(value) for key, value in module.state_dict().items()}
    for key, kind in needed.items():
        if key not in found:
            raise ValueError(
                f"{source}: no {key}; the first key there is {next(iter(found), None)}; build the "
                "same layers"
            )
        saved = found[key]
        if kind and saved != kind and (exact or saved is None or saved[0] != kind[0]):
            raise ValueError(f"{source}: {key} is {_shown(saved)}, this model's is {_shown(kind)}")
    own = names(module)
    for key in found:
        layer = key.split(".")[0]
        if key not in needed and (layer in own or layer not in layers):
            raise ValueError(f"{source}: {key} is nothing that this model has")


def _shown(kind: Kind) -> str:
    return f"{kind[1]} {list(kind[0])}" if kind else "no tensor"


def _counted(layers: Sequence[str]) -> str:
    return f"{len(layers)} layers ({layers[0]} to {layers[-1]})" if layers else "no layers"
