"""`launch`: mistakes in a call are one line; its processes and its store are this user's alone."""

import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist
from examples import refused
from leftovers import processes as left_behind
from leftovers import program, until

from repro.gpipe import StageError, launch
from repro.gpipe.runtime.store import FolderStore, own_prefix


def fine(*_: object) -> None:
    """Can be launched."""


def nested() -> Callable[[], None]:
    def inside() -> None: ...

    return inside


@pytest.mark.parametrize(
    ("fn", "args", "options", "words"),
    [
        (nested(), (), {}, "for this .*nested.<locals>.inside"),
        (fine, ({"key": [lambda: None]},), {}, "for this .*<lambda>"),
        (fine, (threading.Lock(),), {}, "for this .*cannot pickle '_thread.lock' object"),
        (fine, (torch.ones(1, requires_grad=True) * 2,), {}, "for this .*non-leaf tensor"),
        (fine, (), {"stages": 0}, "stages=0: must be a whole number, at least 1"),
        (fine, (), {"threads": 0}, "threads=0: must be a whole number, at least 1"),
    ],
)
def test_one_line_and_no_process(fn: Any, args: Any, options: dict[str, Any], words: str):
    refused(words, launch, fn, *args, **{"stages": 2, **options})


def test_a_result_that_cannot_be_sent_is_named_in_one_line():
    with pytest.raises(StageError, match=r"launch: .*, which cannot be pickled") as caught:
        launch(nested, stages=1)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({}, "RANK=0 and WORLD_SIZE=1 are set in the environment; let .* or unset both"),
        ({"WORLD_SIZE": "2", "RANK": "2"}, "RANK=2 and WORLD_SIZE=2 are set"),
    ],
)
def test_the_variables_of_another_job_are_named(variables: dict[str, str], words: str, monkeypatch):
    for name, value in ({"RANK": "0", "WORLD_SIZE": "1"} | variables).items():
        monkeypatch.setenv(name, value)
    refused(f"stages=2: {words}", launch, fine, stages=2)


def test_a_stage_is_no_process_of_another_job(monkeypatch: pytest.MonkeyPatch):
    """Its GPU would be that of the variable."""
    monkeypatch.setenv("LOCAL_RANK", "7")
    assert launch(os.getenv, "LOCAL_RANK", stages=1) == [None]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_process_launches_as_its_parent_did():
    launch(fine, stages=1)
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        assert pool.submit(launch, fine, stages=1).result() == [None]


_TRAIN = "from repro.gpipe import launch\ndef train(): return 1\n"
_CALL = "launch(train, stages=2)\n"
_IN_MAIN = "no process can be started for this (PicklingError: Can't pickle <function train"
_GUARDED = _TRAIN + "if __name__ == '__main__': " + _CALL
_IMPORTED = (
    "from repro.gpipe import launch\nfrom steps import train\n"
    "if __name__ == '__main__': print(launch(train, stages=2))\n"
)


_NAMES = "vars(__import__('__main__'))"
PROGRAMS = [
    ("script", _TRAIN + _CALL, 'launch: called without `if __name__ == "__main__":`; each '),
    ("pdb", _IMPORTED, ""),
    ("package", _GUARDED, _IN_MAIN),
    ("notebook", _TRAIN + _CALL, _IN_MAIN),
    ("notebook", _IMPORTED, ""),
]


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_programs_whose_function_stages_can_import_or_not(tmp_path: Path):
    """A notebook's cells run in a __main__ without a file; pdb's __main__ has no __spec__."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(["", *sys.path])}
    files: Any = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    files |= {"stdin": subprocess.DEVNULL}  # else pdb would read on
    with ExitStack() as ends:
        started = []
        for n, (how, code, _) in enumerate(PROGRAMS):  # all of them at the same time
            folder = tmp_path / str(n)
            folder.mkdir()
            script = folder / "__main__.py"
            script.write_text(code)
            (folder / "steps.py").write_text("def train(): return 'trained'\n")
            cell = f"exec(compile({code!r}, '<ipython-input-1>', 'exec'), {_NAMES})"
            command = {
                "script": [script],
                "pdb": ["-m", "pdb", "-c", "continue", script],
                "package": [folder],
                "notebook": ["-c", cell],
            }[how]
            command = [sys.executable, *command]
            python = program(folder, command, env=environment, cwd=folder, **files)
            started.append((folder, ends.enter_context(python)))
        for (folder, python), (how, _, words) in zip(started, PROGRAMS, strict=True):
            out, error = python.communicate(timeout=150)
            until(lambda folder=folder: left_behind(folder) == [], 10)
            if words:
                assert f"ValueError: {words}" in error, (how, error)
                assert error.count("Traceback") == 1, (how, error)
            else:
                assert out.startswith("['trained', 'trained']\n"), (how, error)


# The launcher's own store.


def test_it_is_a_store(tmp_path: Path):
    """As torch's HashStore answers."""
    folder = FolderStore(tmp_path)
    for tried in (folder, dist.PrefixStore("part", folder), dist.HashStore()):
        tried.set("a/b", "0")
        tried.set("a/b", "1")
        assert (tried.get("a/b"), tried.check(["a/b"]), tried.check(["a/b", "b"])) == (b"1", 1, 0)
        for theirs in ("mine", "theirs"):
            assert tried.compare_set("first", "", theirs) == tried.get("first") == b"mine"
        with pytest.raises(dist.DistStoreError):
            tried.wait(["never"], timedelta(seconds=0.01))


def test_ranks_that_start_again_have_keys_of_their_own():
    """In torchrun's store, which keeps what those before have left there."""
    store = dist.HashStore()
    with ThreadPoolExecutor(3) as pool:
        starts = [{*pool.map(lambda rank: own_prefix(store, rank, 3), (2, 1, 0))} for _ in range(4)]
    assert [len(prefixes) for prefixes in starts] == [1] * 4
    assert len(set.union(*starts)) == 4


kept: list[tempfile.TemporaryDirectory] = []


def keep_a_folder() -> None:
    """As wandb does, which timm imports."""
    kept.append(tempfile.TemporaryDirectory())


def test_what_a_library_removes_at_exit_is_removed(temporary, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(temporary))
    launch(os.getpid, stages=1)  # the server of processes keeps a folder
    before = list(temporary.iterdir())
    launch(keep_a_folder, stages=2)
    assert list(temporary.iterdir()) == before


# Other users of this machine.


def listening() -> set[Any]:
    """Where this process listens for TCP: an `ip` and a `port` each."""
    connections = psutil.Process().net_connections("tcp")
    return {each.laddr for each in connections if each.status == psutil.CONN_LISTEN}


def hold(folder: str) -> set[str]:
    """Where this rank listens, once its gloo connections are made and the test lets it go."""
    dist.barrier()
    Path(folder, f"{dist.get_rank()}").touch()
    until(Path(folder, "go").exists, 50)
    return {place.ip for place in listening()}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who listens")
def test_another_user_reaches_nothing_of_a_launch(tmp_path: Path, temporary: Path):
    """Neither to read heartbeats nor to post a failure; for gloo see docs/cluster.md."""
    launch(os.getpid, stages=1)  # the server of processes keeps a folder
    kept = list(temporary.iterdir())
    before = listening()
    with ThreadPoolExecutor(1) as pool:
        ranks = pool.submit(launch, hold, str(tmp_path), stages=2)
        try:
            until(lambda: len(list(tmp_path.iterdir())) == 2, 50)
            assert listening() == before, "the launcher has a store without an address"
            modes = [folder.stat().st_mode & 0o777 for folder in temporary.iterdir()]
            assert modes == [0o700] * (len(kept) + 1), "one more, for this user alone"
        finally:
            (tmp_path / "go").touch()
    assert list(temporary.iterdir()) == kept
    addresses = set[str]().union(*ranks.result())
    assert addresses
    assert addresses <= {"127.0.0.1", "::1"}, "loopback alone"
