"""A store in the launcher that its own processes reach, and nobody else on the machine.

Each process inherits one end of two pairs of connected sockets. The sockets have no address, so
there is nothing that another user could connect to. A process notices at once when the launcher is
gone. Signs of life, failures and jobs go through this store, but no data.
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
    """The store itself, in the launcher; a context manager that ends it.

    Args:
        clients: how many processes will have a `PipeClient`.

    Attributes:
        clients: one for each process, to be passed to it as an argument when it is started.
    """

    def __init__(self, clients: int) -> None:
        super().__init__()
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._closed = False
        pairs = [(Pipe(), Pipe()) for _ in range(clients)]
        self.clients = [PipeClient(quick[1], patient[1]) for quick, patient in pairs]
        # One thread for each end: one that waits, or whose process is stopped, keeps nobody else
        # waiting.
        for end in (end for quick, patient in pairs for end in (quick[0], patient[0])):
            threading.Thread(
                target=self._serve, args=(end,), name="gpipe-store", daemon=True
            ).start()

    def __enter__(self) -> "PipeStore":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def started(self) -> None:
        """Close the clients' ends, once their processes hold them: then a process that ends is noticed."""
        for client in self.clients:
            client.close()

    def close(self) -> None:
        """End the store, once its clients have ended."""
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
        """A value, as soon as there is one."""
        self.wait([key])
        return self._values[key]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Several values, as soon as all are there."""
        self.wait(keys)
        return [self._values[key] for key in keys]

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all of them have a value."""
        return all(key in self._values for key in keys)

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Set a value if the present one, "" if there is none, is as expected; returns the new state."""
        with self._changed:
            if self._values.get(key, b"") == _raw(expected):
                self.set(key, desired)
            return self._values.get(key, _raw(expected))

    def add(self, key: str, amount: int) -> int:
        """Add to a number that is 0 at first; the sum."""
        with self._changed:
            total = int(self._values.get(key, b"0")) + amount
            self.set(key, str(total))
        return total

    def wait(self, keys: Sequence[str], timeout: timedelta = _LONG) -> None:
        """Wait until all keys have values.

        Raises:
            dist.DistStoreError: if they have none by then.
        """
        with self._changed:
            if not self._changed.wait_for(
                lambda: self._closed or self.check(keys), timeout.total_seconds()
            ):
                raise dist.DistStoreError(f"no {', '.join(keys)} within {timeout}")
            if not self.check(keys):
                raise dist.DistStoreError("the store is closed")

    def clone(self) -> "PipeStore":
        """Itself: several threads may use it at once."""
        return self

    def _serve(self, end: Connection) -> None:
        """Answer one end until it is closed."""
        with end, suppress(EOFError, OSError):
            while True:
                name, arguments = end.recv()
                try:
                    answer = True, getattr(self, name)(*arguments)
                except dist.DistStoreError as error:
                    answer = False, str(error)
                end.send(answer)


class PipeClient(dist.Store):
    """A process's access to the launcher's store; its threads may use it at once.

    Args:
        quick: for questions that are answered at once.
        patient: for those that may wait; only one thread waits at a time.
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
        """A value, as soon as there is one."""
        return self._ask("get", key, patient=not self.check([key]))

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Several values, as soon as all are there."""
        return self._ask("multi_get", keys, patient=not self.check(keys))

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all of them have a value."""
        return self._ask("check", keys)

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Set a value if the present one, "" if there is none, is as expected; returns the new state."""
        return self._ask("compare_set", key, expected, desired)

    def add(self, key: str, amount: int) -> int:
        """Add to a number that is 0 at first; the sum."""
        return self._ask("add", key, amount)

    def wait(self, keys: Sequence[str], timeout: timedelta = _LONG) -> None:
        """Wait until all keys have values.

        Raises:
            dist.DistStoreError: if they have none by then.
        """
        self._ask("wait", keys, timeout, patient=True)

    def clone(self) -> "PipeClient":
        """Itself."""
        return self

    def _ask(self, name: str, *arguments: object, patient: bool = False) -> Any:
        try:
            with self._locks[patient]:
                self._ends[patient].send((name, arguments))
                fine, answer = self._ends[patient].recv()
        except (EOFError, OSError):
            raise dist.DistNetworkError("the launcher is gone") from None
        if not fine:
            raise dist.DistStoreError(answer)
        return answer


def _raw(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
