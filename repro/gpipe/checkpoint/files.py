"""The files of a checkpoint: written so that a crash damages none, and read with distrust.

    folder/stage0-3fa9c1....pt    layers and optimizer state of a stage, by torch.save
    folder/stage1-77b02d....pt
    folder/index.json             step, K, layers; for each file its SHA-256 and its keys with
                                  shapes and types

The index ends with a digest of its own content. So a file that was damaged, edited or mixed up with
another save is refused. The digests detect accidents; they are no signature.
"""

import hashlib
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

from repro.gpipe.checkpoint import optimizer_state
from repro.io.untrusted import LARGE, from_json, open_regular, read_text, short

FORMAT = 2
INDEX = "index.json"
_STAGE_FILE = re.compile(r"stage\d+-[0-9a-f]{32}\.pt")
_NEW_INDEX = re.compile(r"index-[0-9a-f]{32}\.json")
_SHA256 = re.compile(r"[0-9a-f]{64}")

# A tensor's shape and dtype; None for a module's extra state.
Kind = tuple[tuple[int, ...], str] | None


@dataclass(frozen=True)
class Written:
    """Size in bytes and SHA-256, in hexadecimal digits, of a written file."""

    size: int
    sha256: str


@dataclass(frozen=True)
class StagePart:
    """What one stage has written."""

    file: str
    written: Written
    host: str
    kinds: dict[str, Kind]
    optimizer: str | None


@dataclass(frozen=True)
class StageFile:
    """A stage's file by the index: size in bytes, SHA-256, key -> shape and dtype."""

    size: int
    sha256: str
    kinds: dict[str, Kind]


@dataclass(frozen=True)
class Index:
    """The content of the index.

    `stages` is K, the number of ranks and of files. Layers are in layer order. `digest` is of all
    other fields, and empty until the index is written.
    """

    format: int
    step: int
    stages: int
    layers: list[str]
    optimizer: str | None
    extra: dict[str, Any]
    files: dict[str, StageFile]
    digest: str = ""


def new_file(folder: Path, rank: int) -> Path:
    """A path for a stage's file, unique for each save."""
    return folder / f"stage{rank}-{uuid4().hex}.pt"


def write_part(path: Path, module: nn.Sequential, optimizer: Optimizer | None) -> StagePart:
    """Write a stage's layers and optimizer state.

    Raises:
        OSError: if that is impossible.
        ValueError: if a value cannot be saved.
    """
    model = {key: optimizer_state.plain(value, key) for key, value in module.state_dict().items()}
    named = None if optimizer is None else optimizer_state.named_state(optimizer, module)
    path.parent.mkdir(parents=True, exist_ok=True)
    written = _write(path, lambda file: torch.save({"model": model, "optimizer": named}, file))
    return StagePart(
        file=path.name,
        written=written,
        host=socket.gethostname(),
        kinds={key: kind_of(value) for key, value in model.items()},
        optimizer=None if optimizer is None else type(optimizer).__qualname__,
    )


def commit(
    folder: Path,
    parts: Sequence[StagePart],
    layers: Sequence[str],
    step: int,
    extra: Mapping[str, Any] | None,
) -> None:
    """Write the index, which names the parts. Until its rename the old checkpoint is valid.

    Raises:
        OSError: if the index cannot be written.
        ValueError: if a part is not in this folder, the stages' optimizers differ in class, or the
            index would be larger than `read_index` allows.
    """
    for j, part in enumerate(parts):
        path = folder / part.file
        if not path.is_file() or path.stat().st_size != part.written.size:
            raise ValueError(
                f"no file here from stage {j} on {part.host}; all stages need one shared folder"
            )
    optimizers = sorted({part.optimizer for part in parts if part.optimizer})
    if len(optimizers) > 1:
        raise ValueError(
            f"the stages' optimizers are {' and '.join(optimizers)}; use one class on all stages"
        )
    index = Index(
        format=FORMAT,
        step=step,
        stages=len(parts),
        layers=[*layers],
        optimizer=optimizers[0] if optimizers else None,
        extra=dict(extra or {}),
        files={
            part.file: StageFile(part.written.size, part.written.sha256, part.kinds)
            for part in parts
        },
    )
    text = _as_text(index)
    new = folder / f"index-{uuid4().hex}.json"
    _write(new, lambda file: file.write(text.encode()))
    try:
        new.replace(folder / INDEX)
    except OSError:
        new.unlink(missing_ok=True)
        raise


def _as_text(index: Index) -> str:
    """The text of the index's file; raises a ValueError if that could not be read again."""
    fields = json.loads(json.dumps(asdict(index)))  # with lists for tuples, as they will be read
    text = json.dumps({**fields, "digest": digest(fields)}, indent=1)
    if len(text) > LARGE:
        raise ValueError(f"the index would have {len(text)} bytes, allowed are {LARGE}; save less")
    try:
        from_json(text, any_number=True)
    except ValueError as error:
        raise ValueError(f"the index {error}") from None
    return text


def tidy(folder: Path, parts: Sequence[StagePart]) -> None:
    """Delete files of earlier saves, once the new index would survive a power cut."""
    _sync(folder)
    keep = {part.file for part in parts}
    for path in list(folder.iterdir()):
        ours = _STAGE_FILE.fullmatch(path.name) or _NEW_INDEX.fullmatch(path.name)
        if ours and path.name not in keep:
            path.unlink(missing_ok=True)


def read_index(folder: Path) -> Index:
    """The index of a checkpoint.

    Raises:
        ValueError: if it is missing, damaged or edited.
    """
    path = folder / INDEX
    try:
        path.lstat()
        value = from_json(read_text(path, LARGE, links=False), any_number=True)
    except FileNotFoundError:
        raise ValueError(
            f"checkpoint {folder}: no {INDEX} there; name a folder that save() wrote"
        ) from None
    except (OSError, ValueError) as error:
        raise ValueError(f"checkpoint {path}: {_refusal(error)}") from None
    try:
        return _parse(value)
    except ValueError as error:
        raise ValueError(f"checkpoint {path}: no index that can be used here: {error}") from None


def digest(fields: Mapping[str, Any]) -> str:
    """SHA-256 of the index's fields as read from JSON, without the field of the digest."""
    others = {name: value for name, value in fields.items() if name != "digest"}
    canonical = json.dumps(others, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _parse(value: Any) -> Index:
    version = value.get("format") if isinstance(value, dict) else None
    if type(version) is int and version > FORMAT:
        raise ValueError(
            f"format {version}, and {FORMAT} is the newest known here; update this library"
        )
    if type(version) is int and version < FORMAT:
        raise ValueError(
            f"format {version} has no digests of its files; load it with the version of this "
            "library that wrote it, save its whole_state_dict() with torch.save, and load that "
            "with load_state_dict()"
        )
    fields = _fields("the index", value, _INDEX_FIELDS)
    if digest(fields) != fields["digest"]:
        raise ValueError("it was changed after save() wrote it; take another checkpoint")
    files = {name: _parse_stage_file(name, file) for name, file in fields["files"].items()}
    if not 0 <= fields["step"] < 2**63:
        raise ValueError(f"step={short(fields['step'])} is no number of training steps")
    if fields["stages"] != len(files):
        raise ValueError(f"stages={fields['stages']}, and files of {len(files)}")
    for name in fields["layers"]:
        if not isinstance(name, str):
            raise ValueError(f"layers has {short(name)}, which is no name of a layer")
    return Index(**{**fields, "files": files})


_INDEX_FIELDS: dict[str, tuple[type, ...]] = {
    "format": (int,),
    "step": (int,),
    "stages": (int,),
    "layers": (list,),
    "optimizer": (str, type(None)),
    "extra": (dict,),
    "files": (dict,),
    "digest": (str,),
}
_FILE_FIELDS: dict[str, tuple[type, ...]] = {"size": (int,), "sha256": (str,), "kinds": (dict,)}


def _fields(where: str, value: Any, known: Mapping[str, tuple[type, ...]]) -> dict[str, Any]:
    """A dict with exactly these fields, each of one of its types."""
    if not isinstance(value, dict):
        raise ValueError(f"{where} is no object")
    for name in sorted(value.keys() ^ known.keys()):
        verb = "has" if name in value else "lacks"
        raise ValueError(f"{where} {verb} the field {short(name)}")
    for name, types in known.items():
        if type(value[name]) not in types:
            raise ValueError(f"{name}={short(value[name])} is no {types[0].__name__}")
    return dict(value)


def _parse_stage_file(name: str, value: Any) -> StageFile:
    if not _STAGE_FILE.fullmatch(name):
        raise ValueError(f"{short(name)} is no name of a stage's file")
    fields = _fields(name, value, _FILE_FIELDS)
    if not _SHA256.fullmatch(fields["sha256"]):
        raise ValueError(f"sha256={short(fields['sha256'])} is no SHA-256 in hexadecimal digits")
    kinds = {key: _parse_kind(key, kind) for key, kind in fields["kinds"].items()}
    return StageFile(fields["size"], fields["sha256"], kinds)


def _parse_kind(key: str, value: Any) -> Kind:
    if value is None:
        return None
    match value:
        case [[*shape], str(dtype)] if all(type(size) is int and size >= 0 for size in shape):
            return tuple(shape), dtype
    raise ValueError(f"{key}: {short(value)} is no shape and type")


def read_part(folder: Path, index: Index, file: str) -> dict[str, Any]:
    """A stage's "model" and "optimizer".

    The whole file is read once, for its digest. Its tensors stay on disk until they are used.
    Nothing in it can run code.

    Raises:
        ValueError: if the file is missing, damaged, or not as the index says.
    """
    path = folder / file
    known = index.files[file]
    try:
        with open_regular(path, links=False) as opened:
            size = os.fstat(opened.fileno()).st_size
            if size != known.size:
                raise ValueError(f"it has {size} bytes, and save() wrote {known.size}")
            if hashlib.file_digest(opened, "sha256").hexdigest() != known.sha256:
                other = "it is damaged or of another save"
                raise ValueError(f"its SHA-256 is not the one in {INDEX}, so {other}")
            _refuse_compressed(opened)
        part = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        if {key: kind_of(value) for key, value in part["model"].items()} != known.kinds:
            raise ValueError(f"keys, shapes or types are not those in {INDEX}")
        return {"model": part["model"], "optimizer": part["optimizer"]}
    except FileNotFoundError:
        raise ValueError(
            f"checkpoint {folder}: {file} is not there, but {INDEX} names it; take another "
            "checkpoint"
        ) from None
    except Exception as error:  # a damaged file fails in many ways
        raise ValueError(f"checkpoint {path}: {_refusal(error)}") from None


def _refuse_compressed(file: BinaryIO) -> None:
    """Raise a ValueError for a zip file that is compressed; torch.save compresses nothing."""
    with zipfile.ZipFile(file) as archive:
        if any(entry.compress_size != entry.file_size for entry in archive.infolist()):
            raise ValueError("it is compressed, as no file of save() is")


def _refusal(error: Exception) -> str:
    """Why a file is refused, and what to do; a file with a digest cannot be corrected."""
    return f"{one_line(error).partition(';')[0]}; take another checkpoint"


def kind_of(value: object) -> Kind:
    """Shape and dtype of a tensor; None of another value."""
    if not isinstance(value, Tensor):
        return None
    return tuple(value.shape), str(value.dtype).removeprefix("torch.")


def check_extra(value: object) -> None:
    """Raise a ValueError if it is no dict, cannot be JSON, or could not be read again."""
    if value is not None and not isinstance(value, Mapping):
        raise ValueError(
            f"extra: a {type(value).__name__}, needed is a dict; give {{'name': value}}"
        )
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"extra: {error}; use numbers, strings, lists and dicts") from None
    try:
        from_json(text, any_number=True)
    except ValueError as error:
        raise ValueError(f"extra {error}") from None


def one_line(error: BaseException) -> str:
    """The message of an error, with the type of an unexpected one."""
    name = "" if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: "
    return name + " ".join(str(error).split())[:300]


class _Hashed:
    """A file that is being written, and the SHA-256 of its bytes so far.

    torch.save writes through it from the first byte to the last, so nothing is read back.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()

    def write(self, data: bytes | memoryview) -> int:
        """Hash the bytes, and write them."""
        self.sha256.update(data)
        return self._file.write(data)

    def flush(self) -> None:
        """Flush the file; torch.save calls it."""
        self._file.flush()


def _write(path: Path, dump: Callable[[Any], object]) -> Written:
    """Write a new file that survives a power cut; remove it if that fails."""
    try:
        with path.open("xb") as file:
            hashed = _Hashed(file)
            dump(hashed)
            file.flush()
            os.fsync(file.fileno())
            written = Written(file.tell(), hashed.sha256.hexdigest())
        _sync(path.parent)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return written


def _sync(folder: Path) -> None:
    """Make renames and new files of a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
