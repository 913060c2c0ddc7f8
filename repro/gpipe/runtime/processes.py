"""Processes that run one function each and end with this program, however it ends."""

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

from repro.gpipe.runtime.spawnable import unpicklable

NAME = "stage-"  # begins the names of our processes; their number follows
_PR_SET_PDEATHSIG = 1
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Processes:
    """One process for each entry of `calls`, which runs `fn(*args)`; ended by leaving the context.

    Args:
        fn: a function at the top level of a module.
        calls: the arguments of each process.
        threads: CPU threads of each process, set before it imports anything.
        logs: folder for the output of each process, `<number>.log`; None: this program's output.
        local: whether all processes of the group run on this host, so that their sockets need not
            be reachable from another one.

    Raises:
        ValueError: one line, before any process starts, if an argument cannot be pickled.
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
        self._all = []
        for number, args in enumerate(calls):
            output = str(logs / f"{number}.log") if logs is not None else None
            self._all.append(
                context.Process(
                    target=_run,
                    args=(fn, args, os.getpid(), output),
                    name=f"{NAME}{number}",
                    daemon=False,
                )
            )
        try:
            with _environment(threads, local=local), _no_interrupt():
                for process in self._all:
                    process.start()  # pickles the arguments before it starts anything
        except BaseException as error:  # also Ctrl-C between two starts
            self.kill()
            if isinstance(error, OSError) or not isinstance(error, Exception):
                raise
            raise ValueError(
                f"what a process is to run {unpicklable(error)}; pass functions and classes of the "
                "top level of a .py file, detached tensors and numbers, and make what cannot be "
                "sent in the function"
            ) from None

    def __enter__(self) -> "Processes":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def wait(self, seconds: float) -> dict[int, int]:
        """Wait until another process ends, for `seconds` at most.

        Returns:
            Number -> exit code of every process that has ended; negative for a signal.
        """
        wait([process.sentinel for process in self._all if process.exitcode is None], seconds)
        return {
            number: process.exitcode
            for number, process in enumerate(self._all)
            if process.exitcode is not None
        }

    def kill(self) -> None:
        """End all processes with SIGKILL, which also ends a stopped or blocked process."""
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
    """Set the variables that a new process needs before it imports torch, and restore them.

    Variables of the user are kept, except those for the number of threads.
    """
    # Without the log level, every stage prints a C++ stack when another one is gone.
    defaults = {"TORCH_CPP_LOG_LEVEL": "ERROR"}
    if local:
        for _, interface in socket.if_nameindex():
            if interface in ("lo", "lo0"):
                defaults["GLOO_SOCKET_IFNAME"] = defaults["NCCL_SOCKET_IFNAME"] = interface
    before = dict(os.environ)
    os.environ.update(defaults | before | dict.fromkeys(_THREADS, str(threads)))
    try:
        yield
    finally:
        for name in (*defaults, *_THREADS):
            if name in before:
                os.environ[name] = before[name]
            else:
                del os.environ[name]


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """Block SIGINT; processes started inside inherit that, so that Ctrl-C prints no traceback."""
    resource_tracker.ensure_running()  # a later start of it would unblock SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run(fn: Callable[..., object], args: tuple[Any, ...], parent: int, output: str | None) -> None:
    """The main function of each process."""
    if sys.platform == "linux":  # on other systems the process notices that the store is gone
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    # Ctrl-C reaches every process of a terminal; the launcher ends the stages.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if output is not None:
        log = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
    fn(*args)
