"""A key-value store in the launcher that only the launcher's own processes can reach.

Each process inherits one end of two pairs of connected sockets. The sockets have no address, so no
other user can connect to them. A process notices at once when the launcher is gone. The store holds
heartbeats, failures and jobs, but no data.
"""

import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import torch.distributed as dist

_LONG = timedelta(days=30)


class PipeStore:
    """The store itself, in the launcher; leaving the context closes it.

    Attributes:
        own: the launcher's access.
        clients: one for each process, passed to it as an argument when it is started.
    """

    def __init__(self, clients: int) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._closed = False
        pairs = [(Pipe(), Pipe()) for _ in range(clients + 1)]
        self.own, *self.clients = (PipeClient(quick[1], patient[1]) for quick, patient in pairs)
        # One thread for each end: a request that waits, or a process that is stopped, delays no
        # other request.
        for end in (pipe[0] for pair in pairs for pipe in pair):
            threading.Thread(
                target=self._serve, args=(end,), name="gpipe-store", daemon=True
            ).start()

    def __enter__(self) -> "PipeStore":
        return self

    def __exit__(self, *error: object) -> None:
        self.started()
        self.own.close()
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def started(self) -> None:
        """Close our copies of the clients' ends, so that the end of a process is noticed."""
        for client in self.clients:
            client.close()

    def _serve(self, end: Connection) -> None:
        with end, suppress(EOFError, OSError):
            while True:
                name, arguments = end.recv()
                try:
                    with self._changed:
                        answer = True, getattr(self, f"_{name}")(*arguments)
                except dist.DistStoreError as error:
                    answer = False, str(error)
                end.send(answer)

    # What clients may ask for, under the lock.

    def _set(self, key: str, value: bytes) -> None:
        self._values[key] = value
        self._changed.notify_all()

    def _get(self, keys: Sequence[str]) -> list[bytes]:
        return [self._values[key] for key in keys]

    def _check(self, keys: Sequence[str]) -> bool:
        return all(key in self._values for key in keys)

    def _compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        if self._values.get(key, b"") == expected:
            self._set(key, desired)
        return self._values.get(key, expected)

    def _add(self, key: str, amount: int) -> int:
        total = int(self._values.get(key, b"0")) + amount
        self._set(key, str(total).encode())
        return total

    def _wait(self, keys: Sequence[str], seconds: float) -> None:
        if not self._changed.wait_for(lambda: self._closed or self._check(keys), seconds):
            raise dist.DistStoreError(f"no {', '.join(keys)} within {seconds} s")
        if not self._check(keys):
            raise dist.DistStoreError("the store is closed")


class PipeClient(dist.Store):
    """One process's access to the store, with torch's interface; several threads may use it.

    `quick` is for requests that are answered at once, `patient` for those that may wait, of which
    one thread at a time can wait.
    """

    def __init__(self, quick: Connection, patient: Connection) -> None:
        super().__init__()
        self._ends = quick, patient
        self._locks = threading.Lock(), threading.Lock()

    def __reduce__(self) -> tuple[type["PipeClient"], tuple[Connection, Connection]]:
        return PipeClient, self._ends

    def close(self) -> None:
        for end in self._ends:
            end.close()

    def clone(self) -> "PipeClient":
        return self

    def set(self, key: str, value: str | bytes) -> None:
        self._ask("set", key, _raw(value))

    def get(self, key: str) -> bytes:
        return self.multi_get([key])[0]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        if not self.check(keys):
            self.wait(keys)
        return self._ask("get", keys)

    def check(self, keys: Sequence[str]) -> bool:
        return self._ask("check", keys)

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Set a value if the present one ("" if none) is as expected; returns the new value."""
        return self._ask("compare_set", key, _raw(expected), _raw(desired))

    def add(self, key: str, amount: int) -> int:
        """Add to a number that begins at 0; returns the sum."""
        return self._ask("add", key, amount)

    def wait(self, keys: Sequence[str], timeout: timedelta = _LONG) -> None:
        """Wait until all keys have values, or raise a dist.DistStoreError after `timeout`."""
        self._ask("wait", keys, timeout.total_seconds())

    def _ask(self, name: str, *arguments: object) -> Any:
        waits = name == "wait"
        try:
            with self._locks[waits]:
                self._ends[waits].send((name, arguments))
                succeeded, answer = self._ends[waits].recv()
        except (EOFError, OSError):
            raise dist.DistNetworkError("the launcher is gone") from None
        if not succeeded:
            raise dist.DistStoreError(answer)
        return answer


def _raw(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
