"""The checkpoints of a run: a folder for each, the newest ones kept.

    run/step-000200/history.json     losses, learning rates and evaluations so far
    run/step-000200/average/...      the moving average of the weights, if there is one
    run/step-000200/index.json, ...  weights and optimizer, by `Pipeline.save`

The index is written last. So a folder without one is of a save that was interrupted, and counts for
nothing. All files but the history are those of `Pipeline.save`; the index has the history's digest.
"""

import shutil
from pathlib import Path
from typing import Any

from repro.gpipe.checkpoint.files import INDEX, read_index, read_part
from repro.io.untrusted import read_bytes
from repro.train.history import History, digest

AVERAGE, HISTORY = "average", "history.json"
_LARGEST_HISTORY = 2**31  # bytes; about 30 million steps


def checkpoint_folder(run: Path, step: int) -> Path:
    """Where the checkpoint of a step is."""
    return run / f"step-{step:06}"


def committed(run: Path) -> list[Path]:
    """The folders of the checkpoints whose save came to its end, oldest first."""
    return [path for path in _folders(run) if (path / INDEX).exists()]


def newest_usable(run: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that is whole, if there are any, and why newer ones are not.

    All of its files are read.

    Raises:
        ValueError: one line, if there are checkpoints and all of them are damaged.
    """
    damaged: list[str] = []
    for path in reversed(committed(run)):
        try:
            for folder in [path, path / AVERAGE] if (path / AVERAGE).exists() else [path]:
                index = read_index(folder)
                for file in index.files:
                    read_part(folder, index, file)
            read_history(path)
        except ValueError as error:
            damaged.append(str(error))
        else:
            return path, damaged
    if damaged:
        raise ValueError(f"checkpoint {run}: none there is whole; of the newest: {damaged[0]}")
    return None, []


def read_extra(path: Path) -> dict[str, Any]:
    """What the trainer saved beside the weights; raises a ValueError if the index is damaged."""
    return read_index(path).extra


def read_history(path: Path) -> History:
    """The history that belongs to a checkpoint; raises a ValueError if it is damaged."""
    file = path / HISTORY
    try:
        data = read_bytes(file, _LARGEST_HISTORY, path)
    except ValueError as error:
        raise ValueError(f"checkpoint {file}: {error}") from None
    if digest(data) != read_extra(path).get("history"):
        raise ValueError(f"checkpoint {file}: it is damaged or of another save")
    return History.from_json(data)


def remove_old(run: Path, keep: int) -> None:
    """Delete all but the newest checkpoints, and what interrupted saves have left."""
    kept = committed(run)[-keep:]
    for path in _folders(run):
        if path not in kept:
            discard(path)


def discard(path: Path) -> None:
    """Delete a checkpoint; its index goes first, so that a kill leaves no half one."""
    (path / INDEX).unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)


def _folders(run: Path) -> list[Path]:
    """The folders of all checkpoints, also of interrupted saves, by their steps."""
    steps = {path.name.removeprefix("step-"): path for path in run.glob("step-*")}
    return [steps[step] for step in sorted(filter(str.isdecimal, steps), key=int)]
