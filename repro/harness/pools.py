"""Pools of worker processes: on this host, or one for each rank of torchrun on several hosts."""

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Protocol

import torch.distributed as dist

from repro.gpipe.runtime import health
from repro.gpipe.runtime.processes import Processes
from repro.gpipe.runtime.store import PipeClient, PipeStore
from repro.io.temporary import own_folder

# The body of a worker: takes its rank, the number of workers, the store that they share with the
# coordinator, and the store of the process group.
Work = Callable[[int, int, dist.Store, dist.Store], None]

_POLL = 0.1  # seconds
_ANSWER = 5.0  # seconds for other hosts to end their workers


class Pool(Protocol):
    """Worker processes that are started and ended together, and started again after a failure.

    Attributes:
        count: how many there are.
        logs: folder of their output; None where it is this program's.
        lost: why no more can be started; empty as long as they can.
    """

    count: int
    logs: Path | None
    lost: str

    def start(self, work: Work) -> dist.Store:
        """Start the workers; returns a store that they alone share with the caller."""
        ...

    def ended(self) -> dict[int, int]:
        """Rank -> exit code of workers that have ended, which none should do by itself."""
        ...

    def stop(self) -> None:
        """End them all."""
        ...

    def dismiss(self) -> None:
        """Free the pool: no more workers will be started."""
        ...


class Local:
    """Workers on this host; no other user can reach their store."""

    lost = ""

    def __init__(self, count: int, logs: Path) -> None:
        self.count = count
        self.logs: Path | None = logs
        self.processes: Processes | None = None
        self._open = ExitStack()  # what ends with the processes

    def start(self, work: Work) -> dist.Store:
        """Start the workers; they listen on no network address."""
        assert self.logs is not None
        self.logs.mkdir(parents=True, exist_ok=True)
        folder = self._open.enter_context(own_folder())
        store = self._open.enter_context(PipeStore(self.count))
        calls = [
            (work, rank, self.count, client, folder) for rank, client in enumerate(store.clients)
        ]
        self.processes = Processes(_enter_local, calls, logs=self.logs)
        store.started()
        return store

    def ended(self) -> dict[int, int]:
        """Rank -> exit code of those that have ended."""
        return self.processes.wait(0) if self.processes is not None else {}

    def stop(self) -> None:
        """End them all."""
        if self.processes is not None:
            self.processes.kill()
        self.processes = None
        self._open.close()

    def dismiss(self) -> None:
        """Nothing to do: no other rank waits."""


class Torchrun:
    """One worker for each rank of torchrun, started by that rank, which outlives a failed worker.

    Rank 0 asks for starts and ends in torchrun's store, the other ranks `serve`.
    """

    logs: Path | None = None

    def __init__(self) -> None:
        # Kept, because this object may be the server of the store.
        self._rendezvous, self.rank, self.count = next(iter(dist.rendezvous("env://")))
        self.lost = ""
        self._address, self._port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        # The agent's store outlives a restart of its ranks.
        self._prefix = f"pools-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        self._store = _join(self._address, self._port, self._prefix)
        self._number = 0
        self._own: Processes | None = None

    def start(self, work: Work) -> dist.Store:
        """Have every rank start its worker, this one too."""
        self._store.set(f"{self._number}/do", "start")
        self._begin(work)
        return dist.PrefixStore(f"pool-{self._number}", self._store)

    def ended(self) -> dict[int, int]:
        """Rank -> exit code of those that have ended."""
        codes = self._own.wait(0) if self._own is not None else {}
        ended = {0: codes[0]} if codes else {}
        for rank in range(1, self.count):
            key = f"{self._number}/ended/{rank}"
            if self._store.check([key]):
                ended[rank] = int(self._store.get(key))
        return ended

    def stop(self) -> None:
        """Have every rank end its worker, and wait until it did."""
        self._store.set(f"{self._number}/stop", "")
        self._end()
        keys = {rank: f"{self._number}/stopped/{rank}" for rank in range(1, self.count)}
        end = time.monotonic() + _ANSWER
        missing = list(keys)
        while missing and time.monotonic() < end:
            missing = [rank for rank in missing if not self._store.check([keys[rank]])]
            time.sleep(_POLL)
        if missing:
            self.lost = f"rank(s) {', '.join(map(str, missing))} of this torchrun job do not answer"
        self._number += 1

    def dismiss(self) -> None:
        """Let the other ranks end."""
        self._store.compare_set(f"{self._number}/do", "", "go")

    def serve(self, work: Work) -> None:
        """Start and end this rank's worker as rank 0 asks, until rank 0 dismisses it."""
        while self._told(f"{self._number}/do") == "start":
            self._begin(work)
            assert self._own is not None
            while not self._store.check([f"{self._number}/stop"]):
                for code in self._own.wait(_POLL).values():
                    self._store.compare_set(f"{self._number}/ended/{self.rank}", "", str(code))
                    time.sleep(_POLL)
            self._end()
            self._store.set(f"{self._number}/stopped/{self.rank}", "")
            self._number += 1

    def _told(self, key: str) -> str:
        while not self._store.check([key]):
            time.sleep(_POLL)  # a wait inside the store would not heed a signal
        return self._store.get(key).decode()

    def _begin(self, work: Work) -> None:
        call = (
            work,
            self.rank,
            self.count,
            self._address,
            self._port,
            f"{self._prefix}/pool-{self._number}",
        )
        self._own = Processes(_enter, [call], local=False)

    def _end(self) -> None:
        if self._own is not None:
            self._own.kill()
        self._own = None


@cache
def torchrun() -> Torchrun:
    """This rank's part in the pool that torchrun started."""
    return Torchrun()


def _enter_local(work: Work, rank: int, world: int, store: PipeClient, folder: Path) -> None:
    """What a worker process of `Local` does first."""
    with health.report_and_exit():
        work(rank, world, store, dist.FileStore(f"{folder}/rendezvous"))


def _enter(work: Work, rank: int, world: int, address: str, port: int, prefix: str) -> None:
    """What a worker process of `Torchrun` does first."""
    store = _join(address, port, prefix)
    with health.report_and_exit():
        work(rank, world, store, dist.PrefixStore("group", store))


def _join(address: str, port: int, prefix: str) -> dist.Store:
    return dist.PrefixStore(prefix, dist.TCPStore(address, port, is_master=False))
