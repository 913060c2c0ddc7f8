"""Processes that run one function each, of which none outlives this program, and none that stopped is waited for."""

import ctypes
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from pathlib import Path
from types import TracebackType
from typing import Any

import torch.multiprocessing as mp

NAME = "stage-"  # and its number: what multiprocessing calls a process
_PR_SET_PDEATHSIG = 1
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Processes:
    """`fn(*args)` in a process of its own for each entry of `calls`; a context manager that ends them in every case.

    Args:
        fn: a function at the top level of a module.
        calls: the arguments of each process.
        threads: CPU threads of each, known before it imports anything.
        logs: folder for each process's output, `<number>.log`; None: where this program's own goes.
        local: whether they all run here, so that nothing they open needs to be reached from another
            host.
    """

    def __init__(
        self,
        fn: Callable[..., object],
        calls: Sequence[tuple[Any, ...]],
        *,
        threads: int = 1,
        logs: Path | None = None,
        local: bool = True,
    ) -> None:
        context = mp.get_context("spawn")
        outputs = [
            None if logs is None else str(logs / f"{number}.log") for number in range(len(calls))
        ]
        self._all = [
            context.Process(
                target=_run,
                args=(fn, args, os.getpid(), output),
                name=f"{NAME}{number}",
                daemon=False,
            )
            for number, (args, output) in enumerate(zip(calls, outputs, strict=True))
        ]
        try:
            with _environment(threads, local=local), _no_interrupt():
                for process in self._all:
                    process.start()
        except BaseException:  # Ctrl-C in between
            self.kill()
            raise

    def __enter__(self) -> "Processes":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    @property
    def pids(self) -> list[int]:
        """Their process ids, in order."""
        return [process.pid for process in self._all if process.pid is not None]

    def wait(self, seconds: float) -> dict[int, int]:
        """Number -> exit code, negative for a signal, of those that have ended; waits until another one does."""
        wait([process.sentinel for process in self._all if process.exitcode is None], seconds)
        return {
            number: process.exitcode
            for number, process in enumerate(self._all)
            if process.exitcode is not None
        }

    def kill(self) -> None:
        """End them all; a signal that a stopped or blocked process heeds too."""
        begun = [process for process in self._all if process.pid is not None]
        for process in begun:
            process.kill()
        for process in begun:
            process.join()


def how(code: int) -> str:
    """How a process ended, by its exit code: `SIGKILL, probably out of memory`."""
    if code >= 0:
        return f"exit code {code}"
    hint = ", probably out of memory" if code == -signal.SIGKILL else ""
    return f"{signal.Signals(-code).name}{hint}"


@contextmanager
def _environment(threads: int, *, local: bool) -> Iterator[None]:
    """What a new process must find before it imports torch; what the user has set stays, but for the threads."""
    changed = dict.fromkeys(_THREADS, str(threads))
    # else every stage prints a stack when another one is gone
    wanted = {"TORCH_CPP_LOG_LEVEL": "ERROR"}
    if local:
        loopback = next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)
        wanted |= {
            name: loopback for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if loopback
        }
    changed |= {name: value for name, value in wanted.items() if name not in os.environ}
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """Put Ctrl-C off; what is started inside inherits that, until it ignores it, and so says nothing when it comes."""
    resource_tracker.ensure_running()  # starting it would let Ctrl-C through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run(fn: Callable[..., object], args: tuple[Any, ...], parent: int, output: str | None) -> None:
    """What each process does."""
    if sys.platform == "linux":  # elsewhere it notices that the store is gone
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    # Ctrl-C reaches all of a terminal; the launcher ends them
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if output is not None:
        log = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
    fn(*args)
