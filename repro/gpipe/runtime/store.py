"""A key-value store in the launcher that only the launcher's own processes can reach.

Each process inherits one end of a pair of connected sockets. The sockets have no address, so no
other user can connect to them. A process notices at once when the launcher is gone. The store holds
heartbeats, failures, jobs and results, but no messages between stages.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any
from uuid import uuid4

import torch.distributed as dist

_LONG = timedelta(days=30)
# Seconds between looks for a key that is long in coming: rare enough not to disturb a stage that
# computes.
_POLL = 0.05


@contextmanager
def open_store(processes: int) -> Iterator[tuple["PipeClient", list["PipeClient"]]]:
    """The store, while the context lasts: the launcher's access and one for each process.

    The latter are passed to the processes as arguments. Then they are closed here, so that the end
    of a process is noticed.
    """
    values = _Values()
    pairs = [Pipe() for _ in range(1 + processes)]
    # One thread for each end: a process that is stopped delays no other request.
    for end, _ in pairs:
        threading.Thread(target=_serve, args=(values, end), daemon=True).start()
    own, *clients = (PipeClient(end) for _, end in pairs)
    try:
        yield own, clients
    finally:
        for client in (own, *clients):
            client.end.close()


class _Values:
    """What clients may ask for. A daemon thread inside torch's HashStore can abort an exit."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def set(self, key: str, value: bytes) -> None:
        self._values[key] = value

    def get(self, key: str) -> bytes:
        return self._values[key]

    def check(self, keys: Sequence[str]) -> bool:
        return all(key in self._values for key in keys)

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        with self._lock:
            if self._values.get(key, b"") == expected:
                self._values[key] = desired
            return self._values.get(key, expected)


def _serve(values: _Values, end: Connection) -> None:
    with end, suppress(EOFError, OSError):
        while True:
            name, arguments = end.recv()
            end.send(getattr(values, name)(*arguments))


class PipeClient(dist.Store):
    """One process's access to the store, with torch's interface; several threads may use it."""

    def __init__(self, end: Connection) -> None:
        super().__init__()
        self.end = end
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type["PipeClient"], tuple[Connection]]:
        return PipeClient, (self.end,)

    def clone(self) -> "PipeClient":
        return self

    def set(self, key: str, value: str | bytes) -> None:
        self._ask("set", key, _raw(value))

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._ask("get", key)

    def check(self, keys: Sequence[str]) -> bool:
        return self._ask("check", keys)

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Set a value if the present one ("" if none) is as expected; returns the new value."""
        return self._ask("compare_set", key, _raw(expected), _raw(desired))

    def wait(self, keys: Sequence[str], timeout: timedelta = _LONG) -> None:
        """Wait until all keys have values, or raise a dist.DistStoreError after `timeout`."""
        end, pause = time.monotonic() + timeout.total_seconds(), 0.001
        while not self.check(keys):
            if time.monotonic() > end:
                raise dist.DistStoreError(f"no {', '.join(keys)} within {timeout}")
            time.sleep(pause)
            pause = min(2 * pause, _POLL)

    def _ask(self, name: str, *arguments: object) -> Any:
        try:
            with self._lock:
                self.end.send((name, arguments))
                return self.end.recv()
        except (EOFError, OSError):
            raise dist.DistNetworkError("the launcher is gone") from None


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


def _raw(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
