"""A key-value store in the launcher that only the launcher's own processes can reach.

Each process inherits one end of two pairs of connected sockets. The sockets have no address, so no
other user can connect to them. A process notices at once when the launcher is gone. The store holds
heartbeats, failures and jobs, but no data.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import torch.distributed as dist

_LONG = timedelta(days=30)


class PipeStore(dist.Store):
    """The store itself, in the launcher; leaving the context closes it.

    Args:
        clients: number of processes that will have a `PipeClient`.

    Attributes:
        clients: one for each process, passed to it as an argument when it is started.
    """

    def __init__(self, clients: int) -> None:
        super().__init__()
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._closed = False
        pairs = [(Pipe(), Pipe()) for _ in range(clients)]
        self.clients = [PipeClient(quick[1], patient[1]) for quick, patient in pairs]
        # One thread for each end: a request that waits, or a process that is stopped, delays no
        # other request.
        for quick, patient in pairs:
            for end, _ in (quick, patient):
                threading.Thread(
                    target=self._serve, args=(end,), name="gpipe-store", daemon=True
                ).start()

    def __enter__(self) -> "PipeStore":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def started(self) -> None:
        """Close our copies of the clients' ends, so that the end of a process is noticed."""
        for client in self.clients:
            client.close()

    def close(self) -> None:
        """Close the store, once its clients have ended."""
        self.started()
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def set(self, key: str, value: str | bytes) -> None:
        """Set a value."""
        with self._changed:
            self._values[key] = _raw(value)
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        """The value of a key, as soon as it has one."""
        self.wait([key])
        return self._values[key]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """The values of several keys, as soon as all have one."""
        self.wait(keys)
        return [self._values[key] for key in keys]

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys have a value."""
        return all(key in self._values for key in keys)

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Set a value if the present one ("" if none) is as expected; returns the new value."""
        with self._changed:
            if self._values.get(key, b"") == _raw(expected):
                self.set(key, desired)
            return self._values.get(key, _raw(expected))

    def add(self, key: str, amount: int) -> int:
        """Add to a number that begins at 0; returns the sum."""
        with self._changed:
            total = int(self._values.get(key, b"0")) + amount
            self.set(key, str(total))
        return total

    def wait(self, keys: Sequence[str], timeout: timedelta = _LONG) -> None:
        """Wait until all keys have values.

        Raises:
            dist.DistStoreError: if a key has no value after `timeout`.
        """
        with self._changed:
            if not self._changed.wait_for(
                lambda: self._closed or self.check(keys), timeout.total_seconds()
            ):
                raise dist.DistStoreError(f"no {', '.join(keys)} within {timeout}")
            if not self.check(keys):
                raise dist.DistStoreError("the store is closed")

    def clone(self) -> "PipeStore":
        """The store itself: several threads may use it at once."""
        return self

    def _serve(self, end: Connection) -> None:
        with end, suppress(EOFError, OSError):
            while True:
                name, arguments = end.recv()
                try:
                    answer = True, getattr(self, name)(*arguments)
                except dist.DistStoreError as error:
                    answer = False, str(error)
                end.send(answer)


class PipeClient(dist.Store):
    """A process's access to the launcher's store; several threads may use it at once.

    Args:
        quick: connection for requests that are answered at once.
        patient: connection for requests that may wait; one thread at a time can wait.
    """

    def __init__(self, quick: Connection, patient: Connection) -> None:
        super().__init__()
        self._ends = quick, patient
        self._locks = threading.Lock(), threading.Lock()

    def __reduce__(self) -> tuple[Callable[..., "PipeClient"], tuple[Connection, Connection]]:
        return PipeClient, self._ends

    def close(self) -> None:
        """Close both ends."""
        for end in self._ends:
            end.close()

    def set(self, key: str, value: str | bytes) -> None:
        """Set a value."""
        self._ask("set", key, value)

    def get(self, key: str) -> bytes:
        """The value of a key, as soon as it has one."""
        return self._ask("get", key, patient=not self.check([key]))

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """The values of several keys, as soon as all have one."""
        return self._ask("multi_get", keys, patient=not self.check(keys))

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys have a value."""
        return self._ask("check", keys)

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Set a value if the present one ("" if none) is as expected; returns the new value."""
        return self._ask("compare_set", key, expected, desired)

    def add(self, key: str, amount: int) -> int:
        """Add to a number that begins at 0; returns the sum."""
        return self._ask("add", key, amount)

    def wait(self, keys: Sequence[str], timeout: timedelta = _LONG) -> None:
        """Wait until all keys have values.

        Raises:
            dist.DistStoreError: if a key has no value after `timeout`.
        """
        self._ask("wait", keys, timeout, patient=True)

    def clone(self) -> "PipeClient":
        """The client itself: several threads may use it at once."""
        return self

    def _ask(self, name: str, *arguments: object, patient: bool = False) -> Any:
        try:
            with self._locks[patient]:
                self._ends[patient].send((name, arguments))
                succeeded, answer = self._ends[patient].recv()
        except (EOFError, OSError):
            raise dist.DistNetworkError("the launcher is gone") from None
        if not succeeded:
            raise dist.DistStoreError(answer)
        return answer


def _raw(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
