"""Checkpoints of a training run: the unsplit model's keys, saved stage by stage, for any K.

    folder/stage0-3fa9c1....pt    layers and optimizer state of a stage
    folder/stage1-77b02d....pt
    folder/index.pt               step, layers and `extra`; the layers in each file

Each stage writes a file with a new name. Then the first stage replaces the index, in one rename,
and deletes the files that the index does not name. If anything dies meanwhile, the folder still
holds one whole checkpoint.

All files are written by torch.save, which adds a checksum to each member of the archive. That
detects accidents; it is no signature. Nothing in a file can run code.
"""

import copy
import io
import os
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from uuid import uuid4
from zipfile import ZipFile

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from repro.gpipe.checkpoint.optimizer_state import named_state, positional_state
from repro.gpipe.comm.control_channel import ControlChannel
from repro.gpipe.core.layers import names
from repro.gpipe.errors import RefusedError
from repro.io.files import write
from repro.io.untrusted import open_regular, refuse_links, short

T = TypeVar("T")

FORMAT = 4
INDEX = "index.pt"
_OURS = re.compile(r"stage\d+-[0-9a-f]{32}\.pt|\.index\.pt\.\d+")  # the index before its rename


@dataclass(frozen=True)
class Index:
    """What the index holds.

    Attributes:
        step: how many steps were done.
        layers: the names of all layers, in order.
        extra: what the user saved.
        files: the names of the layers in each file.
    """

    step: int
    layers: list[str]
    extra: dict[str, Any]
    files: dict[str, list[str]]


@dataclass(frozen=True)
class Holder:
    """One stage of one replica, which saves and loads together with all others.

    Attributes:
        all_ranks: connects the stages of all replicas, of which the first replica writes.
        stages: K.
        module: this stage's layers by their names in the unsplit model.
        layers: the names of all layers.
    """

    all_ranks: ControlChannel
    stages: int
    module: nn.Sequential
    layers: Sequence[str]

    def together(self, folder: Path, call: Callable[[], Any]) -> list[Any]:
        """The call's result on each rank; if it raises on one, all raise that with its stage."""
        result, problem = None, ""
        try:
            result = call()
        except Exception as error:  # of any kind, since the other ranks must not wait for ever
            stage = self.all_ranks.rank % self.stages
            problem = f"stage {stage} on {socket.gethostname()}: {_one_line(error)}"
        return self.all_ranks.gather_alike(f"checkpoint {folder}", result, {}, problem)


def save(
    holder: Holder,
    folder: Path,
    optimizer: Optimizer | None = None,
    extra: Mapping[str, Any] | None = None,
    *,
    step: int,
) -> None:
    """Write a checkpoint in place of the former one; call it on every stage of every replica."""
    rank, module = holder.all_ranks.rank, holder.module
    path = folder / f"stage{rank}-{uuid4().hex}.pt"  # another name for each save

    def write_part() -> dict[str, list[str]]:
        if rank >= holder.stages:
            return {}
        # All checks come before anything is written.
        refuse_links(folder, folder / INDEX, *folder.glob(".index*"), *folder.glob("stage*"))
        named = None if optimizer is None else named_state(optimizer, module)
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("x+b") as file:
            _write(file, path.name, model=dict(module.state_dict()), optimizer=named)
            file.flush()
            os.fsync(file.fileno())
        return {path.name: names(module)}

    def write_index() -> None:
        if rank == 0:
            files = {name: own for part in parts for name, own in part.items()}
            _commit(folder, Index(step, [*holder.layers], dict(extra or {}), files))

    try:
        parts = holder.together(folder, write_part)
        holder.together(folder, write_index)
    except RefusedError:
        # After any other error, of a stage that died, the index may name this file already.
        with suppress(OSError):
            path.unlink(missing_ok=True)
        raise


def _commit(folder: Path, index: Index) -> None:
    """Write the index, and delete the files of earlier saves.

    Until the rename of the index the old checkpoint is valid.
    """
    for name in index.files:
        if not (folder / name).is_file():
            raise ValueError(f"no {name} here; all stages need one shared folder")
    content = io.BytesIO()
    _write(content, INDEX, **vars(index))
    write(folder / INDEX, content.getvalue())
    # The save has succeeded, also if old files cannot be deleted.
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        os.fsync(handle)  # so that a loss of power undoes no rename behind a deletion
        os.close(handle)
        for path in list(folder.iterdir()):
            if _OURS.fullmatch(path.name) and path.name not in index.files:
                path.unlink()


def load(holder: Holder, folder: Path, optimizer: Optimizer | None = None) -> Index:
    """Load a checkpoint of any K into this stage, in place and bit for bit; returns its index.

    Call it on every stage of every replica. All of them check what they need before any of them
    changes something. Without an optimizer its state is not loaded.
    """
    checked: list[Any] = []

    def check() -> list[str]:
        checked.extend(_check(holder, folder, optimizer))
        return [*checked[0].files]

    seen = holder.together(folder, check)
    if any(files != seen[0] for files in seen):
        raise RefusedError(
            f"checkpoint {folder}: the stages see different checkpoints there; all stages need one "
            "shared folder"
        )
    index, values, state = checked
    holder.module.load_state_dict(values)
    if optimizer is not None:
        optimizer.load_state_dict(state)
    return index


def _check(
    holder: Holder, folder: Path, optimizer: Optimizer | None
) -> tuple[Index, dict[str, Any], dict[str, Any] | None]:
    """The index, and what a stage loads of the model's and the optimizer's state, if it fits."""
    index = _read(folder, INDEX, Index)
    own, needed = names(holder.module), holder.module.state_dict()
    if index.layers != [*holder.layers]:
        raise ValueError(
            f"its layers are {short(index.layers)}, this model's are {short([*holder.layers])}; "
            "build the model that was saved"
        )
    files = [name for name, layers in index.files.items() if not {*layers}.isdisjoint(own)]
    parts = [_read(folder, name, dict) for name in files]
    saved = {key: value for part in parts for key, value in part["model"].items()}
    values = {key: value for key, value in saved.items() if key.split(".")[0] in own}
    for key in [*needed, *values]:
        there, here = _describe(values, key), _describe(needed, key)
        if there != here:
            raise ValueError(
                f"{key} is {there} there, and {here} in this model; build the model that was saved"
            )
    if optimizer is None:
        return index, values, None
    states = [part["optimizer"] for part in parts if part["optimizer"] is not None]
    return index, values, positional_state(states, optimizer, holder.module)


def whole_state_dict(folder: Path | str) -> dict[str, Any]:
    """The unsplit model's state dict, in layer order and on the CPU; needs no other process."""
    folder = Path(folder)
    index = _read(folder, INDEX, Index)
    parts = [copy.deepcopy(_read(folder, name, dict)["model"]) for name in index.files]
    values = {key: value for part in parts for key, value in part.items()}
    # A file may hold the layers of several stages, between which those of other files belong.
    position = {name: n for n, name in enumerate(index.layers)}
    return dict(sorted(values.items(), key=lambda item: position[item[0].split(".")[0]]))


def _write(file: BinaryIO, name: str, **content: Any) -> None:
    """Write a file of this name; a ValueError if it could only be loaded by running code."""
    torch.save({"format": FORMAT, "name": name, "content": content}, file)
    file.seek(0)
    unsafe = torch.serialization.get_unsafe_globals_in_checkpoint(file)
    if unsafe:
        raise ValueError(
            f"{', '.join(unsafe)} cannot be saved; use tensors, numbers, strings, lists, tuples "
            "and dicts"
        )


def _read(folder: Path, name: str, kind: Callable[..., T]) -> T:
    """What `_write` wrote. The whole file is read once; its tensors stay on disk until used."""
    path = folder / name
    try:
        with open_regular(path, folder) as opened, ZipFile(opened) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise ValueError(f"{damaged} in it is damaged")
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        if found["format"] != FORMAT:
            raise ValueError(f"format {found['format']}, and only {FORMAT} is known here")
        if found["name"] != name:
            raise ValueError(f"it was saved as {found['name']}")
        return kind(**found["content"])
    except Exception as error:  # a damaged file fails in many ways
        reason = _one_line(error).partition(";")[0]
        raise ValueError(f"{path}: {reason}; take another checkpoint") from None


def _one_line(error: BaseException) -> str:
    """The message of an error, with the type of an unexpected one."""
    # torch.save raises a RuntimeError while it handles the OSError of a full disk.
    if isinstance(error.__context__, OSError) and not error.__suppress_context__:
        error = error.__context__
    name = "" if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: "
    return name + short(error, 300, quote=False)


def _describe(values: Mapping[str, Any], key: str) -> str:
    """A value in a state dict, so far as another one must be like it."""
    value = values.get(key)
    if not isinstance(value, Tensor):  # such as the extra state of a module
        return "no tensor" if key in values else "missing"
    return f"{str(value.dtype).removeprefix('torch.')} {[*value.shape]}"
