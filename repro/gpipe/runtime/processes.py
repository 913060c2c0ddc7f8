"""Processes that run one function each and end with this program, however it ends."""

import atexit
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from multiprocessing import forkserver, parent_process, resource_tracker, spawn
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch.multiprocessing as mp

from repro.io.signals import delayed, end_with_parent
from repro.io.untrusted import short

NAME = "stage-"  # begins the names of our processes; their rank follows
# Modules that the server imports before it forks any process. A program may add its own, before its
# first process, so that no process imports them again.
PRELOADED = ["repro.gpipe.runtime.server"]
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_OF_A_JOB = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_turn = threading.Lock()  # all threads share the environment variables and the main module


class Processes:
    """One process for each rank of `calls`, which runs `fn(*args)`; ended by leaving the context.

    The output of each goes to `<rank>.log` in a folder for logs, else to where this program's went
    when it started its first process. If all processes of the group are `local`, their sockets need
    not be reachable from another host.

    Raises:
        ValueError: one line, if an argument cannot be pickled or this process may start none.
    """

    def __init__(
        self,
        fn: Callable[..., object],
        calls: Mapping[int, tuple[Any, ...]],
        *,
        threads: int = 1,
        logs: Path | None = None,
        local: bool = True,
    ) -> None:
        self._all = {}
        try:
            with _turn, _environment(threads, local=local), _importable_main(), _no_interrupt():
                context: Any = mp.get_context(_start_method())
                for rank, args in calls.items():
                    log = logs / f"{rank}.log" if logs is not None else None
                    self._all[rank] = context.Process(
                        target=_run,
                        args=(fn, args, dict(os.environ), log),
                        name=f"{NAME}{rank}",
                        daemon=False,
                    )
                for process in self._all.values():
                    _start(process)
        except BaseException:  # also Ctrl-C between two starts
            self.kill()
            raise

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def wait(self, seconds: float) -> dict[int, int]:
        """Rank -> exit code of each that has ended, negative for a signal.

        Waits until another one ends, for `seconds` at most.
        """
        wait([each.sentinel for each in self._all.values() if each.exitcode is None], seconds)
        codes = {rank: process.exitcode for rank, process in self._all.items()}
        return {rank: code for rank, code in codes.items() if code is not None}

    def kill(self) -> None:
        """End all processes with SIGKILL, which also ends a stopped or blocked process."""
        begun = [process for process in self._all.values() if process.pid is not None]
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

    Variables of the user are kept, except those for the number of threads, and, for `local`
    processes, those that describe one process of another job.
    """
    defaults = {
        # Without it every stage prints a C++ stack when another one is gone.
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        # Python's tracker removes what killed processes leave, such as tqdm's locks, and warns.
        "PYTHONWARNINGS": "ignore::UserWarning:multiprocessing.resource_tracker",
    }
    if local:
        for _, interface in socket.if_nameindex():
            if interface in ("lo", "lo0"):
                defaults["GLOO_SOCKET_IFNAME"] = defaults["NCCL_SOCKET_IFNAME"] = interface
    before = dict(os.environ)
    os.environ.update(defaults | before | dict.fromkeys(_THREADS, str(threads)))
    for name in _OF_A_JOB if local else ():
        os.environ.pop(name, None)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


@contextmanager
def _importable_main() -> Iterator[None]:
    """Hide a main module that new processes cannot import, such as that of a notebook.

    They then import none, and pickle refuses what belongs to it.
    """
    main = sys.modules["__main__"]
    # multiprocessing reads it; pdb leaves it out.
    vars(main).setdefault("__spec__", None)
    data = spawn.get_preparation_data("")
    file, name = data.get("init_main_from_path", ""), data.get("init_main_from_name", "__main__")
    # multiprocessing imports no `__main__.py`, since those have no guard.
    if not Path(file).is_file() and name.rpartition(".")[2] == "__main__":
        sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """Block SIGINT; processes started inside inherit that, so that Ctrl-C prints no traceback."""
    resource_tracker.ensure_running()  # a later start of it would unblock SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@cache
def _has_server(_process: int) -> bool:
    """Start the server that this process forks others from; False if its socket's path is too long.

    It ends with this process, which holds one end of a pipe.
    """
    # A forked process inherits the number of its parent's server.
    vars(forkserver._forkserver).update(vars(forkserver.ForkServer()))
    forkserver.set_forkserver_preload(PRELOADED)
    try:
        forkserver.ensure_running()
    except OSError:
        return False
    return True


def _start(process: Any) -> None:
    try:
        with delayed():  # half a process would print a traceback
            process.start()  # pickles the arguments before it starts anything
    except (OSError, EOFError):
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {short(error, 200, quote=False)}"
        raise ValueError(
            f"no process can be started for this ({reason}); import functions and classes from the "
            "top level of a .py file, pass detached tensors and numbers, and make what cannot be "
            "pickled in the function"
        ) from None


def _start_method() -> str:
    """The method "forkserver", or "spawn" where forking is not safe or not wanted."""
    is_wanted = mp.get_start_method(allow_none=True) != "spawn"
    if sys.platform == "linux" and is_wanted and _has_server(os.getpid()):
        return "forkserver"
    return "spawn"


def _end_after(launcher: BaseProcess) -> None:
    launcher.join()
    os._exit(1)


def _run(
    fn: Callable[..., object], args: tuple[Any, ...], environment: dict[str, str], log: Path | None
) -> None:
    end_with_parent()
    server = vars(forkserver._forkserver)
    if (pipe := server["_forkserver_alive_fd"]) is not None:
        os.close(pipe)  # the launcher alone holds it, so that the server ends with the launcher
        server.update(vars(forkserver.ForkServer()))
    launcher = parent_process()
    if launcher is None or not launcher.is_alive():
        os._exit(1)
    if sys.platform != "linux":  # where `end_with_parent` does nothing
        threading.Thread(target=_end_after, args=(launcher,), daemon=True).start()
    os.environ.clear()
    os.environ.update(environment)
    np.random.seed()  # else processes of the server would all draw alike
    # Ctrl-C reaches every process of a terminal; the launcher ends the stages.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if log is not None:
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, 1)
        os.dup2(file, 2)
    fn(*args)
    # multiprocessing leaves these out where it forks. timm imports wandb, which makes temporary
    # folders and removes them so.
    atexit._run_exitfuncs()
