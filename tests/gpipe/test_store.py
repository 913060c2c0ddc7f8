"""The launcher's own store: its operations, and that nobody else on the machine reaches it."""

import os
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import intruder
import pytest
import torch.distributed as dist

from repro.gpipe import launch
from repro.gpipe.runtime.heartbeats import Failure, board, post_failure, posted_failure
from repro.gpipe.runtime.processes import Processes
from repro.gpipe.runtime.store import PipeClient, PipeStore


@pytest.fixture
def store() -> Iterator[PipeStore]:
    with PipeStore(1) as made:
        yield made


@pytest.mark.parametrize("where", ["in the launcher", "in a process", "behind a prefix"])
def test_it_is_a_store(store: PipeStore, where: str):
    """As torch's HashStore answers."""
    one: dist.Store = store if where == "in the launcher" else store.clients[0]
    for tried in (dist.PrefixStore("part", one) if "prefix" in where else one, dist.HashStore()):
        tried.set("a", "1")
        assert (tried.get("a"), tried.check(["a"]), tried.check(["a", "b"])) == (b"1", True, False)
        assert (
            tried.compare_set("first", "", "mine")
            == tried.compare_set("first", "", "theirs")
            == b"mine"
        )
        assert tried.compare_set("first", "mine", "new") == tried.get("first") == b"new"
        assert tried.multi_get(["a", "first"]) == [b"1", b"new"]
        assert (tried.add("count", 2), tried.add("count", 3)) == (2, 5)
        with pytest.raises(dist.DistStoreError):
            tried.wait(["never"], timedelta(seconds=0.01))


def test_one_thread_waits_while_another_one_asks(store: PipeStore):
    client, waited = store.clients[0], threading.Event()

    def wait() -> None:
        client.wait(["late"])
        waited.set()

    thread = threading.Thread(target=wait)
    thread.start()
    client.set("other", "x")
    assert store.get("other") == b"x"
    assert not waited.wait(0.05)
    client.set("late", "x")
    thread.join(10)
    assert waited.is_set()


def test_a_process_whose_launcher_is_gone_is_told_so(store: PipeStore):
    """Its ends are all that keep the connection open, as when the launcher is killed."""
    client = store.clients[0]
    store.started()
    with pytest.raises(dist.DistNetworkError, match="the launcher is gone"):
        client.check(["a"])


def test_the_first_failure_is_the_cause(store: PipeStore):
    for posts in (board(store), board(dist.HashStore())):
        assert posted_failure(posts) is None
        first = post_failure(posts, Failure(1, "failed", "cause"))
        assert (
            post_failure(posts, Failure(0, "failed", "consequence"))
            == first
            == posted_failure(posts)
        )


def add(client: PipeClient) -> None:
    """What a process of `test_processes_inherit_it` does."""
    for _ in range(100):
        client.add("count", 1)


def test_processes_inherit_it():
    with (
        PipeStore(2) as store,
        Processes(add, [(client,) for client in store.clients]) as processes,
    ):
        store.started()
        while len(processes.wait(1.0)) < 2:
            pass
        assert store.get("count") == b"200"


def hold(folder: str) -> None:
    """Say that this rank runs, and wait to be let go."""
    Path(folder, f"{dist.get_rank()} {os.getpid()}").touch()
    while not Path(folder, "go").exists():
        time.sleep(0.05)


@intruder.as_root
def test_another_user_reaches_nothing_of_a_launch(tmp_path: Path, temporary: Path):
    """Neither to read heartbeats nor to post a failure; for gloo see docs/cluster.md."""
    launch(os.getpid, stages=1)  # the server of processes keeps a folder
    kept = list(temporary.iterdir())
    before = intruder.ports(os.getpid())
    thread = threading.Thread(
        target=launch, args=(hold, str(tmp_path)), kwargs={"stages": 2}, daemon=True
    )
    thread.start()
    end = time.monotonic() + 300  # a busy machine may take minutes to import torch
    while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < end:
        time.sleep(0.1)
    opened = intruder.ports(os.getpid()) - before
    folders = list(temporary.iterdir())
    found = intruder.others_reach(opened, folders)
    (tmp_path / "go").touch()
    thread.join(60)
    assert not thread.is_alive()
    assert found == []
    assert len(folders) == len(kept) + 1
    assert list(temporary.iterdir()) == kept
