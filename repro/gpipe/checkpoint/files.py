"""The files of a checkpoint. A crash during a write damages none; a read trusts none.

    folder/stage0-3fa9c1....pt    layers and optimizer state of a stage, by torch.save
    folder/stage1-77b02d....pt
    folder/index.json             step and layers; for each file its SHA-256 and layers

The index ends with a digest of its own content. So a file that was damaged, edited or mixed up with
another save is refused. The digests detect accidents; they are no signature. Nothing in a file can
run code.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from repro.gpipe.checkpoint import optimizer_state
from repro.gpipe.core.layers import names
from repro.io.files import write
from repro.io.untrusted import LARGE, from_json, open_regular, read_text, short

FORMAT = 3
INDEX = "index.json"
_OURS = re.compile(r"stage\d+-[0-9a-f]{32}\.pt|\.index\.json\.\d+")  # the index before its rename

# What one stage has written: the name of its file, the file, and the class of its optimizer.
Part = tuple[str, "StageFile", str | None]


@dataclass(frozen=True)
class StageFile:
    """A stage's file: SHA-256 in hexadecimal digits, and the names of the layers in it."""

    sha256: str
    layers: list[str]


@dataclass(frozen=True)
class Index:
    """The content of the index.

    Layers are in layer order. `digest` is of all other fields, and empty until the index is
    written.
    """

    format: int
    step: int
    layers: list[str]
    optimizer: str | None
    extra: dict[str, Any]
    files: dict[str, StageFile]
    digest: str = ""


def write_part(path: Path, module: nn.Sequential, optimizer: Optimizer | None) -> Part:
    """Write a stage's layers and optimizer state; a ValueError if a value cannot be saved."""
    model = {key: optimizer_state.plain(value, key) for key, value in module.state_dict().items()}
    named = None if optimizer is None else optimizer_state.named_state(optimizer, module)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("x+b") as file:
        torch.save({"model": model, "optimizer": named}, file)
        file.flush()
        os.fsync(file.fileno())
        file.seek(0)
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    _sync(path.parent)
    name = None if optimizer is None else type(optimizer).__qualname__
    return path.name, StageFile(sha256, names(module)), name


def commit(
    folder: Path,
    parts: Sequence[Part],
    layers: Sequence[str],
    step: int,
    extra: Mapping[str, Any] | None,
) -> None:
    """Write the index, which names the parts, and delete the files of earlier saves.

    Until the rename of the index the old checkpoint is valid.
    """
    for j, (name, _, _) in enumerate(parts):
        if not (folder / name).is_file():
            raise ValueError(f"no file here from stage {j}; all stages need one shared folder")
    optimizers = sorted({kind for _, _, kind in parts if kind})
    if len(optimizers) > 1:
        raise ValueError(
            f"the stages' optimizers are {' and '.join(optimizers)}; use one class on all stages"
        )
    optimizer = optimizers[0] if optimizers else None
    files = {name: file for name, file, _ in parts}
    index = Index(FORMAT, step, [*layers], optimizer, dict(extra or {}), files)
    fields = asdict(index)
    text = json.dumps({**fields, "digest": digest(fields)}, indent=1)
    if len(text) > LARGE:
        raise ValueError(f"the index would have {len(text)} bytes, allowed are {LARGE}; save less")
    write(folder / INDEX, text.encode())
    # The save has succeeded, also if old files cannot be deleted.
    with suppress(OSError):
        _sync(folder)
        for path in list(folder.iterdir()):
            if _OURS.fullmatch(path.name) and path.name not in files:
                path.unlink()


def read_index(folder: Path) -> Index:
    """The index of a checkpoint; a ValueError if it is missing, damaged or edited."""
    path = folder / INDEX
    try:
        fields = from_json(read_text(path, LARGE, folder))
        version = fields.get("format")
        if version != FORMAT:
            raise ValueError(f"format {version}, and {FORMAT} is the only one that is known here")
        if digest(fields) != fields.get("digest"):
            raise ValueError("it was changed after save() wrote it")
        files = {name: StageFile(**file) for name, file in fields["files"].items()}
        return Index(**{**fields, "files": files})
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise _refusal(path, error) from None


def digest(fields: Mapping[str, Any]) -> str:
    """SHA-256 of the index's fields as read from JSON, without the field of the digest."""
    others = {name: value for name, value in fields.items() if name != "digest"}
    canonical = json.dumps(others, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def read_part(folder: Path, index: Index, name: str) -> dict[str, Any]:
    """A stage's "model" and "optimizer".

    The whole file is read once, for its digest. Its tensors stay on disk until they are used.
    """
    path = folder / name
    try:
        with open_regular(path, folder) as opened:
            if hashlib.file_digest(opened, "sha256").hexdigest() != index.files[name].sha256:
                raise ValueError(
                    f"its SHA-256 is not the one in {INDEX}, so it is damaged or of another save"
                )
        part = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        return {"model": part["model"], "optimizer": part["optimizer"]}
    except Exception as error:  # a damaged file fails in many ways
        raise _refusal(path, error) from None


def _refusal(path: Path, error: Exception) -> ValueError:
    """Why a file is refused, and what to do; a file with a digest cannot be corrected."""
    reason = one_line(error).partition(";")[0]
    return ValueError(f"checkpoint {path}: {reason}; take another checkpoint")


def one_line(error: BaseException) -> str:
    """The message of an error, with the type of an unexpected one."""
    name = "" if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: "
    return name + short(error, 300, quote=False)


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
