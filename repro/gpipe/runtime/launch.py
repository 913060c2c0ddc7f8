"""Start one process for each stage, so that a program needs no torchrun.

if __name__ == "__main__":
    launch(train, stages=2)

A stage process starts with an empty memory. It imports the program's main file under another name.
The function and its arguments arrive as a pickle, in which functions and classes are only names.
"""

import atexit
import os
import pickle
from collections.abc import Callable
from multiprocessing import current_process
from typing import Any

import torch.distributed as dist

from repro.gpipe.errors import check_counts
from repro.gpipe.runtime import health
from repro.gpipe.runtime.group import Group, initialise, on_this_host
from repro.gpipe.runtime.heartbeats import INTERVAL, Failure
from repro.gpipe.runtime.processes import NAME
from repro.gpipe.runtime.status import status
from repro.gpipe.runtime.store import FolderStore
from repro.io.untrusted import short

_NO_GUARD = 93  # exit code of a stage that finds itself in `launch` while it imports the main file
_GUARD = (
    'launch: called without `if __name__ == "__main__":`; each stage process imports this file '
    "and would call it again, so put the call under that line"
)


class StageError(RuntimeError):
    """A stage failed; `failure` holds its rank, last action and traceback."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"{failure.text}\n{failure.traceback}".rstrip())
        self.failure = failure


def launch(fn: Callable[..., Any], *args: Any, stages: int, threads: int = 1) -> list[Any]:
    """Run `fn(*args)` in one process for each stage and return their results in rank order.

    Under torchrun, its ranks are used instead of new processes. The backend is NCCL if every stage
    has its own GPU, else gloo.

    Args:
        fn: a function at the top level of a module; the script that calls `launch` needs the usual
            `if __name__ == "__main__":`. docs/launching.md describes notebooks.
        args: its arguments; arguments and results must be picklable.
        stages: K, the number of processes.
        threads: CPU threads of each process.

    Raises:
        ValueError: one line, before any process starts, if an argument is out of range, processes
            could not import the function or unpickle its arguments, this process is daemonic,
            torchrun or a job started another number of ranks, or the script has no guard.
        StageError: when a stage fails, dies or hangs; within ten seconds. The others are ended.

    As any program, a stage ends once its threads have ended, apart from daemons.
    """
    if getattr(current_process(), "_inheriting", False):  # a process that imports the main file
        if current_process().name.startswith(NAME):
            os._exit(_NO_GUARD)  # a stage: its launcher raises the error, once for all of them
        raise ValueError(_GUARD)
    check_counts(stages=stages, threads=threads)
    if os.environ.get("RANK") and os.environ.get("WORLD_SIZE"):
        return _under_torchrun(fn, args, stages, threads)
    with on_this_host(_child, stages, fn, args, threads=threads) as group:
        _wait_for_all(group)
        return [pickle.loads(group.store.get(f"result/{rank}")) for rank in range(stages)]


def _wait_for_all(group: Group) -> None:
    """Wait until all stages have ended; raises a StageError as soon as one has failed."""
    ended = 0
    while ended < group.world:
        ended = len(group.processes.wait(INTERVAL))
        if (failure := group.failure()) is not None:
            if _NO_GUARD in group.processes.wait(0).values():
                raise ValueError(_GUARD)
            raise StageError(failure)


def _child(
    rank: int, world: int, store: FolderStore, fn: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    """Run the function in a stage process and deliver its result."""
    result = fn(*args)
    try:
        packed = pickle.dumps(result)
    except Exception as error:  # of any kind, from the user's classes
        what = f"launch: the function returned {short(result)}, which cannot be pickled"
        raise ValueError(f"{what} ({error}); return numbers, tensors or state dicts") from None
    health.current().end()
    store.set(f"result/{rank}", packed)
    # A neighbour may still read from this process.
    store.wait([f"result/{other}" for other in range(world)])
    dist.destroy_process_group()


def _under_torchrun(
    fn: Callable[..., Any], args: tuple[Any, ...], stages: int, threads: int
) -> list[Any]:
    rank, world = os.environ["RANK"], os.environ["WORLD_SIZE"]
    if world != str(stages) or rank not in map(str, range(stages)):
        raise ValueError(
            f"stages={stages}: RANK={rank} and WORLD_SIZE={world} are set in the environment; let "
            "torchrun start as many ranks as stages, or unset both, and launch starts the stages"
        )
    if not dist.is_initialized():  # one group for every launch of this program
        initialise(int(rank), stages, threads=threads)
        atexit.register(dist.destroy_process_group)
    result = fn(*args)
    results: list[Any] = [None] * stages
    status.ended = True
    dist.all_gather_object(results, result)
    status.ended = False
    return results
