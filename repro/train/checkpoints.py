"""The checkpoints of a run: a folder for each, the newest ones kept.

    run/step-000200/history.json     losses, learning rates and evaluations so far
    run/step-000200/average/...      the moving average of the weights, if there is one
    run/step-000200/index.json, ...  weights and optimizer, by `Pipeline.save`

The index is written last. So a folder without one is of a save that was interrupted, and counts for
nothing. All files but the history are those of `Pipeline.save`; the index has the history's digest.
"""

import hashlib
import shutil
from pathlib import Path

from repro.gpipe.checkpoint.files import INDEX, read_index, read_part
from repro.io.files import write
from repro.io.untrusted import read_bytes, refuse_links
from repro.train.history import History

AVERAGE = "average"
_HISTORY = "history.json"
_LARGEST_HISTORY = 2**31  # bytes; about 30 million steps


def committed(run: Path) -> list[Path]:
    """The folders of the checkpoints whose save came to its end, oldest first."""
    return [path for path in _folders(run) if (path / INDEX).exists()]


def newest_usable(run: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint that is whole, of which all files are read, and why newer ones are not.

    A one-line ValueError if there are checkpoints and all of them are damaged.
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


def weights_of(folder: Path) -> Path:
    """Where the weights to take from a run are: its moving average if it has one.

    A folder that has no checkpoints is itself one of `Pipeline.save`.
    """
    path = newest_usable(folder)[0] or folder
    refuse_links(path, path / AVERAGE)
    return path / AVERAGE if (path / AVERAGE).exists() else path


def write_history(path: Path, history: History) -> str:
    """Write the history of a checkpoint; returns its SHA-256 for the index."""
    data = history.as_json()
    write(path / _HISTORY, data)
    return hashlib.sha256(data).hexdigest()


def read_history(path: Path) -> History:
    """The history that belongs to a checkpoint; raises a ValueError if it is damaged."""
    file = path / _HISTORY
    try:
        data = read_bytes(file, _LARGEST_HISTORY, path)
    except ValueError as error:
        raise ValueError(f"checkpoint {file}: {error}") from None
    if hashlib.sha256(data).hexdigest() != read_index(path).extra.get("history"):
        raise ValueError(f"checkpoint {file}: it is damaged or of another save")
    return History.from_json(data)


def remove_old(run: Path) -> None:
    """Delete all but the two newest checkpoints, and what interrupted saves have left."""
    kept = committed(run)[-2:]
    for path in _folders(run):
        if path not in kept:
            discard(path)


def discard(path: Path) -> None:
    """Delete a checkpoint; its index goes first, so that a kill leaves no half one."""
    (path / INDEX).unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)


def _folders(run: Path) -> list[Path]:
    """The folders of all checkpoints, also of interrupted saves, by their steps; without links."""
    for level in ("step-*", "step-*/*", f"step-*/{AVERAGE}/*"):
        refuse_links(run, *run.glob(level))
    steps = {path.name.removeprefix("step-"): path for path in run.glob("step-*")}
    return [steps[step] for step in sorted(filter(str.isdecimal, steps), key=int)]
