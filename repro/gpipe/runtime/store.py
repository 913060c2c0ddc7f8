"""Key-value stores: one of the launcher's own, and the keys of these ranks in torchrun's store.

A store holds heartbeats, failures, jobs and results, but no messages between stages.
"""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote
from uuid import uuid4

import torch.distributed as dist

_LONG = timedelta(days=30)
# Seconds between looks for a key that is long in coming: rare enough not to disturb a stage that
# computes.
_POLL = 0.05


class FolderStore(dist.Store):
    """A store with one file for each value, for the processes of a host that may open the folder.

    In a folder of this user alone no other user can reach it. torch's FileStore keeps all values
    that were ever set, so its file would grow with each heartbeat.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def __reduce__(self) -> tuple[type["FolderStore"], tuple[Path]]:
        return FolderStore, (self._folder,)

    def clone(self) -> "FolderStore":
        return self

    def set(self, key: str, value: str | bytes) -> None:
        self._written(value).replace(self._path(key))

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._path(key).read_bytes()

    def check(self, keys: Sequence[str]) -> bool:
        return all(self._path(key).exists() for key in keys)

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Set a value if there is none; returns the one that there is."""
        assert not expected
        written = self._written(desired)
        with suppress(FileExistsError):
            os.link(written, self._path(key))  # unlike a rename, it replaces no file
        written.unlink()
        return self.get(key)

    def wait(self, keys: Sequence[str], timeout: timedelta = _LONG) -> None:
        """Wait until all keys have values, or raise a dist.DistStoreError after `timeout`."""
        end, pause = time.monotonic() + timeout.total_seconds(), 0.001
        while not self.check(keys):
            if time.monotonic() > end:
                raise dist.DistStoreError(f"no {', '.join(keys)} within {timeout}")
            time.sleep(pause)
            pause = min(2 * pause, _POLL)

    def _path(self, key: str) -> Path:
        return self._folder / quote(key, safe="")

    def _written(self, value: str | bytes) -> Path:
        """A new file with this value, to be moved where the key is: no reader sees a part of it."""
        path = self._folder / f".{uuid4().hex}"
        path.write_bytes(value.encode() if isinstance(value, str) else value)
        return path


def own_prefix(store: dist.Store, rank: int, world: int) -> str:
    """A prefix for the keys of these ranks that no ranks before them have used.

    torchrun's store outlives a restart of its ranks, and the agents of two hosts may count their
    restarts differently. So rank 0 makes up a prefix, and confirms it to the processes that answer.
    """
    own, keys = uuid4().hex, [f"answer/{other}" for other in range(1, world)]
    store = dist.PrefixStore("gpipe-starts", store)

    def value(key: str) -> str:
        return store.get(key).decode() if store.check([key]) else ""

    if rank == 0:
        store.set("prefix", own)
        while not all(value(key).startswith(own) for key in keys):
            time.sleep(_POLL)
        store.set("confirmed", " ".join([own, *map(value, keys)]))
    while own not in value("confirmed").split():
        store.set(f"answer/{rank}", f"{value('prefix')} {own}")
        time.sleep(_POLL)
    return value("confirmed").split()[0]
