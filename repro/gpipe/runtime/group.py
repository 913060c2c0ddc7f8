"""A group of processes that is started, watched and ended as one: on this host, or by torchrun.

In each process runs `body(rank, world, store, *args)`, with a store that the group alone shares
with its launcher.
"""

import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import torch
import torch.distributed as dist

from repro.gpipe.comm.transport import TIMEOUT, nccl_pairs
from repro.gpipe.runtime import health
from repro.gpipe.runtime.heartbeats import (
    INTERVAL,
    Failure,
    SilenceDetector,
    board,
    post_death,
    posted_failure,
    running,
)
from repro.gpipe.runtime.processes import Processes, how
from repro.gpipe.runtime.store import PipeClient, PipeStore

Body = Callable[..., None]

_POLL = 0.1  # seconds
_ANSWER = 5.0  # seconds for other hosts to end their processes


class Watched:
    """What a launcher sees of a group, through the group's store.

    Args:
        store: of the group.
        world: number of its processes.
    """

    def __init__(self, store: dist.Store, world: int) -> None:
        self.store = store
        self._world = world
        self._board = board(store)
        self._silence = SilenceDetector(self._board)
        self._looked = time.monotonic()

    def failure(self, ended: Mapping[int, int]) -> Failure | None:
        """The failure that was reported first: by a process, or by the exit code of one, or none.

        Processes watch each other, but all of them may stop at once: so their heartbeats count too.

        Args:
            ended: rank -> exit code of processes that should not have ended.
        """
        if (failure := posted_failure(self._board)) is not None:
            return failure
        for rank, code in ended.items():
            return post_death(self._board, rank, how(code))
        if time.monotonic() < self._looked + INTERVAL:
            return None
        self._looked = time.monotonic()
        return self._silence.find_silent(running(self._board, self._world))


class Group:
    """Processes of this host; a context manager that always ends them.

    No other user can reach their store, and they listen on no network address.

    Args:
        body: what each runs.
        world: number of processes.
        folder: through which they find each other; only this user can open it.
        args: more arguments of the body, which must be picklable.
        threads: CPU threads of each process.
        logs: folder for their output; None: this program's output.

    Attributes:
        store: of the group.
    """

    def __init__(
        self,
        body: Body,
        world: int,
        folder: Path,
        *args: object,
        threads: int = 1,
        logs: Path | None = None,
    ) -> None:
        with ExitStack() as opened:
            self.store = opened.enter_context(PipeStore(world))
            calls = [
                (body, rank, world, client, folder / "rendezvous", threads, args)
                for rank, client in enumerate(self.store.clients)
            ]
            self._processes = opened.enter_context(
                Processes(_enter, calls, threads=threads, logs=logs)
            )
            self.store.started()
            self._opened = opened.pop_all()
        self._watched = Watched(self.store, world)

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.close()

    def wait(self, seconds: float) -> dict[int, int]:
        """Rank -> exit code of those that have ended; waits for `seconds` until one does."""
        return self._processes.wait(seconds)

    def failure(self, ended: Mapping[int, int] | None = None) -> Failure | None:
        """See `Watched.failure`; by default none should have ended."""
        return self._watched.failure(self.wait(0) if ended is None else ended)


class Torchrun:
    """One process for each rank of torchrun, started by that rank, which outlives a failed one.

    Rank 0 asks for starts and ends in torchrun's store, the other ranks `serve`.

    Attributes:
        rank: of this process.
        world: number of ranks.
        lost: why no more can be started; empty as long as they can.
    """

    def __init__(self) -> None:
        # Kept, because this object may be the server of the store.
        self._rendezvous, self.rank, self.world = next(iter(dist.rendezvous("env://")))
        self.lost = ""
        self._address, self._port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        # The agent's store outlives a restart of its ranks.
        self._prefix = f"groups-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        self._store = _join(self._address, self._port, self._prefix)
        self._number = 0

    def start(self, body: Body) -> "TorchrunGroup":
        """Have every rank start its process, this one too."""
        self._store.set(f"{self._number}/do", "start")
        store = dist.PrefixStore(f"group-{self._number}", self._store)
        return TorchrunGroup(self, store, self._begin(body))

    def dismiss(self) -> None:
        """Let the other ranks end."""
        self._store.compare_set(f"{self._number}/do", "", "go")

    def serve(self, body: Body) -> None:
        """Start and end this rank's process as rank 0 asks, until rank 0 dismisses it."""
        while self._command() == "start":
            with self._begin(body) as own:
                while not self._store.check([f"{self._number}/stop"]):
                    for code in own.wait(_POLL).values():
                        self._store.compare_set(f"{self._number}/ended/{self.rank}", "", str(code))
                        time.sleep(_POLL)
            self._store.set(f"{self._number}/stopped/{self.rank}", "")
            self._number += 1

    def ended(self, own: Processes) -> dict[int, int]:
        """Rank -> exit code of the group's processes that have ended."""
        ended = dict(own.wait(0))
        for rank in range(1, self.world):
            key = f"{self._number}/ended/{rank}"
            if self._store.check([key]):
                ended[rank] = int(self._store.get(key))
        return ended

    def stop(self, own: Processes) -> None:
        """Have every rank end its process, and wait until it did."""
        self._store.set(f"{self._number}/stop", "")
        own.kill()
        keys = {rank: f"{self._number}/stopped/{rank}" for rank in range(1, self.world)}
        end = time.monotonic() + _ANSWER
        missing = list(keys)
        while missing and time.monotonic() < end:
            missing = [rank for rank in missing if not self._store.check([keys[rank]])]
            time.sleep(_POLL)
        if missing:
            self.lost = f"rank(s) {', '.join(map(str, missing))} of this torchrun job do not answer"
        self._number += 1

    def _command(self) -> str:
        key = f"{self._number}/do"
        while not self._store.check([key]):
            time.sleep(_POLL)  # a wait inside the store would not heed a signal
        return self._store.get(key).decode()

    def _begin(self, body: Body) -> Processes:
        prefix = f"{self._prefix}/group-{self._number}"
        call = (body, self.rank, self.world, self._address, self._port, prefix)
        return Processes(_enter_torchrun, [call], local=False)


class TorchrunGroup:
    """As `Group`: the processes that all ranks of torchrun have started."""

    def __init__(self, team: Torchrun, store: dist.Store, own: Processes) -> None:
        self.store = store
        self._team, self._own = team, own
        self._watched = Watched(store, team.world)

    def __enter__(self) -> "TorchrunGroup":
        return self

    def __exit__(self, *error: object) -> None:
        self._team.stop(self._own)

    def failure(self) -> Failure | None:
        """See `Watched.failure`."""
        return self._watched.failure(self._team.ended(self._own))


def initialise(rank: int, world: int, store: dist.Store | None = None, threads: int = 1) -> None:
    """Set up this process: threads, its GPU, the process group, and the watch over the others.

    The backend is NCCL if every stage has its own GPU, else gloo.

    Args:
        rank: of this process in the world.
        world: number of ranks.
        store: through which the processes find each other; None: the one that torchrun names in
            the environment.
        threads: CPU threads.
    """
    torch.set_num_threads(threads)
    local_rank = int(os.environ.get("LOCAL_RANK", rank))
    local_world = int(os.environ.get("LOCAL_WORLD_SIZE", world))
    gpus = torch.cuda.device_count()
    if gpus:
        torch.cuda.set_device(local_rank % gpus)
    backend = "cpu:gloo,cuda:nccl" if gpus >= local_world else "gloo"
    if store is None:
        dist.init_process_group(backend, timeout=TIMEOUT)
    else:
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=TIMEOUT)
    health.begin(store, rank, world)
    if backend != "gloo":
        nccl_pairs(world)


@cache
def torchrun() -> Torchrun:
    """This rank's part in the groups of torchrun's ranks."""
    return Torchrun()


def _enter(
    body: Body,
    rank: int,
    world: int,
    store: PipeClient,
    rendezvous: Path,
    threads: int,
    args: tuple[object, ...],
) -> None:
    """What a process of a `Group` runs."""
    health.begin(store, rank, world)
    with health.report_and_exit():
        initialise(rank, world, dist.FileStore(str(rendezvous)), threads)
        body(rank, world, store, *args)


def _enter_torchrun(
    body: Body, rank: int, world: int, address: str, port: int, prefix: str
) -> None:
    """What a process of a `TorchrunGroup` runs."""
    store = _join(address, port, prefix)
    health.begin(store, rank, world)
    with health.report_and_exit():
        initialise(rank, world, dist.PrefixStore("group", store))
        body(rank, world, store)


def _join(address: str, port: int, prefix: str) -> dist.Store:
    return dist.PrefixStore(prefix, dist.TCPStore(address, port, is_master=False))
