"""A group of processes that is started, watched and ended as one: on this host, or by torchrun.

In each process runs `body(rank, world, store, *args)`, with a store that the group alone shares
with its launcher.
"""

import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch
import torch.distributed as dist

from repro.gpipe.comm import shm
from repro.gpipe.comm.control_channel import TIMEOUT
from repro.gpipe.comm.transport import nccl_pairs
from repro.gpipe.runtime import health
from repro.gpipe.runtime.heartbeats import INTERVAL, Board, Failure
from repro.gpipe.runtime.processes import Processes, how
from repro.gpipe.runtime.store import FolderStore, own_prefix
from repro.io.temporary import own_folder

Body = Callable[..., None]

_POLL = 0.1  # seconds
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h


class Group:
    """A group of `world` processes as its launcher sees it: their store, and those it started."""

    def __init__(self, store: dist.Store, world: int, processes: Processes) -> None:
        self.store, self.world, self.processes = store, world, processes
        self.board = Board(store)
        self._looked = time.monotonic()

    def failure(self) -> Failure | None:
        """The failure that was reported first: by a process, or by the exit code of one, or none.

        Processes watch each other, but all of them may stop at once: so their heartbeats count too.
        """
        if (failure := self.board.failure()) is not None:
            return failure
        for rank, code in self.processes.wait(0).items():
            if code or not self.board.heartbeat(rank).ended:
                text = f"{self.board.last_seen(rank)}: died ({how(code)})"
                return self.board.post_failure(Failure(rank, text))
        if time.monotonic() < self._looked + INTERVAL:
            return None
        self._looked = time.monotonic()
        return self.board.find_silent(range(self.world))


@contextmanager
def on_this_host(
    body: Body, world: int, *args: object, threads: int = 1, logs: Path | None = None
) -> Iterator[Group]:
    """A group of processes of this host, which end with the context.

    Their store is in a folder that only this user can open. Without a folder for logs their output
    is that of this program.
    """
    with own_folder() as folder:
        store = FolderStore(folder)
        calls = {
            rank: (body, rank, world, store, folder / "rendezvous", threads, args)
            for rank in range(world)
        }
        with Processes(_enter, calls, threads=threads, logs=logs) as processes:
            yield Group(store, world, processes)


class Torchrun:
    """Groups of one process for each rank of torchrun, started by that rank, which outlives them.

    Rank 0 asks for starts and ends in torchrun's store, the other ranks `serve`.
    """

    def __init__(self) -> None:
        store, self.rank, self.world = next(iter(dist.rendezvous("env://")))
        self._prefix = own_prefix(store, self.rank, self.world)
        self._store = dist.PrefixStore(self._prefix, store)
        self._store.set(f"host/{self.rank}", shm.host() if shm.available() else shm.boot_id())
        self._number = 0

    @property
    def hosts(self) -> int:
        """How many hosts the ranks are on; those without common shared memory count as several."""
        return len({self._store.get(f"host/{rank}") for rank in range(self.world)})

    @contextmanager
    def group(self, body: Body) -> Iterator[Group]:
        """Have every rank start its process, this one too; leaving the context ends all."""
        self._store.set(f"{self._number}/do", "start")
        with self._own(body) as group:
            try:
                yield group
            finally:
                self._store.set(f"{self._number}/stop", "")
                group.processes.kill()
                self._number += 1

    def dismiss(self) -> None:
        self._store.compare_set(f"{self._number}/do", "", "go")

    def serve(self, body: Body) -> None:
        """Start and end this rank's process as rank 0 asks, until rank 0 dismisses it."""
        while self._command() == "start":
            with self._own(body) as group:
                while not self._store.check([f"{self._number}/stop"]):
                    group.failure()  # posts how the own process has ended
                    time.sleep(_POLL)
            self._number += 1

    @contextmanager
    def _own(self, body: Body) -> Iterator[Group]:
        """The next group, with this rank's process."""
        prefix = f"{self._prefix}/group-{self._number}"
        call = (body, self.rank, self.world, prefix, None, 1, ())
        with Processes(_enter, {self.rank: call}, local=False) as own:
            store = dist.PrefixStore(f"group-{self._number}", self._store)
            yield Group(store, self.world, own)

    def _command(self) -> str:
        key = f"{self._number}/do"
        while not self._store.check([key]):
            time.sleep(_POLL)  # a wait inside the store would not heed a signal
        return self._store.get(key).decode()


@cache
def torchrun() -> Torchrun:
    return Torchrun()


def initialise(rank: int, world: int, store: dist.Store | None = None, threads: int = 1) -> None:
    """Set up this process: threads, its GPU, the process group, and the watch over the others.

    The backend is NCCL if every stage has its own GPU, else gloo. Without a store the processes
    find each other through the one that torchrun names in the environment.
    """
    torch.set_num_threads(threads)
    _keep_freed_memory()
    local_rank = int(os.environ.get("LOCAL_RANK", rank))
    local_world = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    gpus = torch.cuda.device_count()
    if gpus:
        torch.cuda.set_device(local_rank % gpus)
    backend = "cpu:gloo,cuda:nccl" if gpus >= local_world else "gloo"
    if store is None:
        whole, _, _ = next(iter(dist.rendezvous("env://", timeout=TIMEOUT)))
        store = dist.PrefixStore(own_prefix(whole, rank, world), whole)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=TIMEOUT)
    health.begin(store, rank, world)
    if backend != "gloo":
        nccl_pairs(world)


def _keep_freed_memory() -> None:
    """Let this process keep what a step frees for the next one, where its C library is glibc.

    By default large activations go back to the kernel at the end of a step, and the page faults of
    getting them again take up to a tenth of a step on the CPU.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        libc.mallopt(_M_MMAP_THRESHOLD, 2**25)  # the largest that glibc allows


def _enter(
    body: Body,
    rank: int,
    world: int,
    shared: FolderStore | str,
    rendezvous: Path | None,
    threads: int,
    args: tuple[object, ...],
) -> None:
    """Run a process of a group; `shared` is its store, or the prefix in torchrun's."""
    store = _join(shared) if isinstance(shared, str) else shared
    watch = health.begin(store, rank, world)
    try:
        with health.report_errors_to_all():
            meeting = dist.FileStore(str(rendezvous)) if rendezvous else store
            initialise(rank, world, meeting, threads)
            body(rank, world, store, *args)
    except BaseException as error:
        watch.report(error)  # also an error that all ranks raise; the launcher shows it
        os._exit(1)


def _join(prefix: str) -> dist.Store:
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.PrefixStore(prefix, dist.TCPStore(address, port, is_master=False))
