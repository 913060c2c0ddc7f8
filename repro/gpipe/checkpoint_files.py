"""The files of a checkpoint: how they are written so that a crash spoils none, and how much they are trusted.

folder/stage0-3fa9c1....pt    layers and optimizer state of a stage, by torch.save
folder/stage1-77b02d....pt
folder/index.json             step, layers, and of each file its keys with shapes and types
"""

import json
import os
import re
import socket
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from repro.gpipe import optimizer_state
from repro.gpipe.layers import names

FORMAT = 1
INDEX = "index.json"
_STAGE_FILE = re.compile(r"stage\d+-[0-9a-f]{32}\.pt")
_NEW_INDEX = re.compile(r"index-[0-9a-f]{32}\.json")

Kind = tuple[tuple[int, ...], str] | None  # a tensor's shape and type; None for a module's extra state


@dataclass(frozen=True)
class Part:
    """What one stage has written."""

    file: str
    size: int
    host: str
    layers: list[str]
    kinds: dict[str, Kind]
    optimizer: str | None


@dataclass(frozen=True)
class Index:
    """The content of the index, in layer order."""

    format: int
    step: int
    layers: list[str]
    optimizer: str | None
    extra: dict[str, Any]
    files: dict[str, dict[str, Kind]]


def new_file(folder: Path, rank: int) -> Path:
    """A name for a stage's file that no other save has."""
    return folder / f"stage{rank}-{uuid4().hex}.pt"


def write_part(path: Path, module: nn.Sequential, optimizer: Optimizer | None) -> Part:
    """Write a stage's layers and optimizer state.

    Raises:
        OSError: if that is impossible.
        ValueError: if a value cannot be saved.
    """
    model = {key: optimizer_state.plain(value, key) for key, value in module.state_dict().items()}
    named = None if optimizer is None else optimizer_state.named(optimizer, module)
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, lambda file: torch.save({"model": model, "optimizer": named}, file))
    return Part(
        file=path.name,
        size=path.stat().st_size,
        host=socket.gethostname(),
        layers=names(module),
        kinds={key: kind_of(value) for key, value in model.items()},
        optimizer=None if optimizer is None else type(optimizer).__qualname__,
    )


def commit(folder: Path, parts: Sequence[Part], step: int, extra: Mapping[str, Any] | None) -> None:
    """Name the parts in the index. Up to its last line the old checkpoint is the valid one.

    Raises:
        OSError: if the index cannot be written.
        ValueError: if a part is not in this folder, or the stages' optimizers differ in class.
    """
    for j, part in enumerate(parts):
        path = folder / part.file
        if not path.is_file() or path.stat().st_size != part.size:
            raise ValueError(f"no file here from stage {j} on {part.host}; all stages need one shared folder")
    optimizers = sorted({part.optimizer for part in parts if part.optimizer})
    if len(optimizers) > 1:
        raise ValueError(f"the stages' optimizers are {' and '.join(optimizers)}; use one class on all stages")
    index = Index(
        format=FORMAT,
        step=step,
        layers=[name for part in parts for name in part.layers],
        optimizer=optimizers[0] if optimizers else None,
        extra=dict(extra or {}),
        files={part.file: part.kinds for part in parts},
    )
    new = folder / f"index-{uuid4().hex}.json"
    _write(new, lambda file: file.write(as_json(asdict(index)).encode()))
    new.replace(folder / INDEX)


def tidy(folder: Path, parts: Sequence[Part]) -> None:
    """Delete what earlier saves left, but only once the new index is sure to outlive a power cut."""
    _sync(folder)
    keep = {part.file for part in parts}
    for path in list(folder.iterdir()):
        ours = _STAGE_FILE.fullmatch(path.name) or _NEW_INDEX.fullmatch(path.name)
        if ours and path.name not in keep:
            path.unlink(missing_ok=True)


def read_index(folder: Path) -> Index:
    """The index; it may have been edited or damaged.

    Raises:
        ValueError: one line that says what is wrong with it.
    """
    path = folder / INDEX
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"checkpoint {folder}: no {INDEX} there; name a folder that save() wrote") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"checkpoint {path}: not readable ({one_line(error)}); take another checkpoint") from None
    try:
        if type(found["format"]) is int and found["format"] > FORMAT:
            raise ValueError(f"format {found['format']}, and {FORMAT} is the newest known here; update this library")
        return _parsed(found)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"checkpoint {path}: no index that can be used here: {one_line(error)}") from None


def _parsed(found: dict[str, Any]) -> Index:
    files = {
        name: {key: None if kind is None else (tuple(map(int, kind[0])), str(kind[1])) for key, kind in kinds.items()}
        for name, kinds in found["files"].items()
    }
    index = Index(**{**found, "files": files})
    if strange := [name for name in files if not _STAGE_FILE.fullmatch(name)]:
        raise ValueError(f"{strange[0]!r} is no name of a stage's file")
    for field, kind in (("format", int), ("step", int), ("layers", list), ("extra", dict)):
        if type(value := getattr(index, field)) is not kind:
            raise ValueError(f"{field}={value!r} is no {kind.__name__}")
    return index


def read_part(folder: Path, index: Index, file: str) -> dict[str, Any]:
    """A stage's "model" and "optimizer"; tensors stay on disk until they are read, and nothing in it can run code.

    Raises:
        ValueError: one line, if the file is missing, damaged, or not what the index says.
    """
    path = folder / file
    if not path.is_file():
        raise ValueError(f"checkpoint {folder}: {file} is not there, but {INDEX} names it; take another checkpoint")
    try:
        with zipfile.ZipFile(path) as archive:  # torch.load checks no sums
            if broken := archive.testzip():
                raise ValueError(f"the checksum of {broken} is wrong")
        part = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        if {key: kind_of(value) for key, value in part["model"].items()} != index.files[file]:
            raise ValueError(f"keys, shapes or types are not those in {INDEX}")
        return {"model": part["model"], "optimizer": part["optimizer"]}
    except Exception as error:  # a damaged file fails in many ways
        raise ValueError(f"checkpoint {path}: damaged ({one_line(error)}); take another checkpoint") from None


def kind_of(value: object) -> Kind:
    """Shape and type of a tensor."""
    return (tuple(value.shape), str(value.dtype).removeprefix("torch.")) if isinstance(value, Tensor) else None


def as_json(value: object) -> str:
    """The value as JSON.

    Raises:
        ValueError: if it is more than JSON can hold.
    """
    try:
        return json.dumps(value, indent=1)
    except (TypeError, ValueError) as error:
        raise ValueError(f"extra: {error}; use numbers, strings, lists and dicts") from None


def one_line(error: BaseException) -> str:
    """What an error says; of an unexpected one also its name."""
    name = "" if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: "
    return name + " ".join(str(error).split())[:300]


def _write(path: Path, dump: Callable[[BinaryIO], object]) -> None:
    """A new file that outlives a power cut; none if that fails."""
    try:
        with path.open("xb") as file:
            dump(file)
            file.flush()
            os.fsync(file.fileno())
        _sync(path.parent)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _sync(folder: Path) -> None:
    """Make renames and new names in a folder outlive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
