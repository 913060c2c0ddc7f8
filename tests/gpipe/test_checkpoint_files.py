"""The files of a checkpoint: one whole checkpoint whatever dies, and one line for whatever is damaged."""

import json
import os
import pickle
import resource
import threading
import time

import pytest
import torch
from checkpoints import Stages, get, model, put, refused, same, stepped

from repro.gpipe.checkpoint import save, whole_state_dict


def test_old_files_go_and_other_files_stay(tmp_path):
    (tmp_path / "stage0.pt").write_text("the user's")
    (tmp_path / "index-notes.json").write_text("the user's")
    for step in (1, 2, 3):
        put(tmp_path, model(4, 4), step=step)
    assert len(list(tmp_path.iterdir())) == 4
    assert get(tmp_path, model(4, 4)).step == 3


def test_a_stage_that_cannot_write_stops_all(tmp_path):
    folder = tmp_path / "run"
    put(folder, model(4, 4, seed=5))
    before = whole_state_dict(folder)
    (tmp_path / "file").write_text("no folder")

    def one(rank, gather):
        where = tmp_path / "file" / "run" if rank else folder
        save(where, rank=rank, gather=gather, module=model(4, 4, first=rank), optimizer=None, step=9)

    for error in Stages(3).all(one):
        assert isinstance(error, OSError)
        assert "stage 1 on" in str(error)
        assert "Not a directory" in str(error)
    assert same(before, whole_state_dict(folder))
    assert len(list(folder.iterdir())) == 2


def test_hosts_without_a_shared_folder(tmp_path):
    def one(rank, gather):
        where = tmp_path / f"host{rank}"
        save(where, rank=rank, gather=gather, module=model(4, 4, first=rank), optimizer=None, step=9)

    for error in Stages(2).all(one):
        assert isinstance(error, ValueError)
        assert "no file here from stage 1 on" in str(error)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_stages_with_different_optimizers(tmp_path):
    def one(rank, gather):
        module = model(4, 4, first=rank)
        optimizer = stepped(module, ("SGD", "Adam")[rank])
        save(tmp_path, rank=rank, gather=gather, module=module, optimizer=optimizer, step=9)

    for error in Stages(2).all(one):
        assert "optimizers are Adam and SGD" in str(error)


@pytest.mark.parametrize("meeting", [1, 2, 3])
def test_a_stage_that_dies_leaves_a_whole_checkpoint(tmp_path, meeting):
    """The others learn it in a gather that fails, before or after the commit; the next save cleans up."""
    put(tmp_path, model(4, 4, 4, seed=5), step=1)
    stages = Stages(2)

    def one(rank, gather, deadline=meeting):
        met = []

        def dying(value):
            met.append(value)
            if rank == 1 and len(met) == deadline:
                while not stages.barrier.n_waiting:  # until the first stage has done what comes before this gather
                    time.sleep(0.001)
                stages.barrier.abort()
            return gather(value)

        save(tmp_path, rank=rank, gather=dying, module=model(4, 4, first=rank), optimizer=None, step=2)

    assert all(isinstance(error, threading.BrokenBarrierError) for error in stages.all(one))
    assert get(tmp_path, model(4, 4, 4)).step == (1 if meeting == 1 else 2)
    stages.barrier.reset()
    assert stages.all(lambda rank, gather: one(rank, gather, deadline=0)) == [None, None]
    assert len(list(tmp_path.iterdir())) == 3


def test_a_full_disk(tmp_path):
    """The first save of a larger model meets a limit on the size of files."""
    put(tmp_path, model(4, 4))
    before = sorted(tmp_path.iterdir())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(OSError, match=r"stage 0 on .*File too large"):
            put(tmp_path, model(100, 100))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert sorted(tmp_path.iterdir()) == before


def killed_at(moment, folder, module):
    """Save in a forked process that dies before or after the given call that touches the disk; whether it died."""
    child = os.fork()
    if not child:
        calls = 0

        def dying(call):
            def wrapped(*args, **kwargs):
                nonlocal calls
                for _ in range(2):
                    if calls == moment:
                        os._exit(9)
                    if calls % 2 == 0:
                        result = call(*args, **kwargs)
                    calls += 1
                return result

            return wrapped

        for name in ("open", "fsync", "replace", "unlink"):
            setattr(os, name, dying(getattr(os, name)))
        torch.save = dying(torch.save)
        put(folder, module, step=2)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def test_killed_at_any_moment(tmp_path):
    old, new = model(4, 4, seed=1), model(4, 4, seed=2)
    steps = []
    for moment in range(100):
        folder = tmp_path / str(moment)
        put(folder, old, step=1)
        died = killed_at(moment, folder, new)
        steps.append(get(folder, model(4, 4)).step)
        assert same(whole_state_dict(folder), (old if steps[-1] == 1 else new).state_dict())
        put(folder, old, step=3)
        assert len(list(folder.iterdir())) == 2
        if not died:
            break
    assert steps == sorted(steps)
    assert (steps[0], steps[-1]) == (1, 2)
    assert steps.count(1) > 8
    assert steps.count(2) > 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": 2}, "format 2, and 1 is the newest known here"),
        ({"step": "3"}, "step='3' is no int"),
        ({"step": True}, "step=True is no int"),
        ({"layers": None}, "layers=None is no list"),
        ({"files": {"../stage0.pt": {}}}, r"'\.\./stage0\.pt' is no name of a stage's file"),
        ({"files": {"/etc/passwd": {}}}, "'/etc/passwd' is no name of a stage's file"),
        ({"files": {f"stage0-{'0' * 32}.pt": {"0.weight": [[4, 4], "float32"]}}}, r"no 0\.bias"),
        ({"files": []}, "no index that can be used here"),
        ({"files": {"x": {"0.weight": []}}}, "no index that can be used here"),
        ({"color": "red"}, "no index that can be used here.*color"),
    ],
)
def test_an_edited_index(tmp_path, change, words):
    put(tmp_path, model(4, 4))
    index = tmp_path / "index.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | change))
    refused(words, get, tmp_path, model(4, 4))


class Malicious:
    def __reduce__(self):
        return os.mkdir, ("ran",)


def test_damaged_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "run"
    refused("no index.json there", get, folder, model(4, 4))
    folder.mkdir(exist_ok=True)
    (folder / "index.json").write_text("[" * 100_000)
    refused("not readable", get, folder, model(4, 4))
    put(folder, model(4, 4))
    (path,) = folder.glob("*.pt")
    whole = path.read_bytes()
    weight = whole.index(model(4, 4).get_parameter("0.weight").detach().numpy().tobytes())
    flipped = bytearray(whole)
    flipped[weight] ^= 1
    torch.save({"model": {"0.weight": torch.ones(4, 4)}, "optimizer": None}, "other.pt")
    torch.save({"model": Malicious(), "optimizer": None}, "malicious.pt")
    for content, words in (
        (whole[: len(whole) // 2], "damaged"),
        (b"", "damaged"),
        (bytes(flipped), "damaged .the checksum of"),
        ((tmp_path / "other.pt").read_bytes(), "keys, shapes or types are not those in index.json"),
        ((tmp_path / "malicious.pt").read_bytes(), "damaged"),
        (pickle.dumps(Malicious()), "damaged"),
    ):
        path.write_bytes(content)
        refused(words, get, folder, model(4, 4))
        refused(words, whole_state_dict, folder)
    assert not (tmp_path / "ran").exists()
    path.unlink()
    refused("is not there, but index.json names it", get, folder, model(4, 4))
    for content in (b"{", b"\xff\xff", b""):
        (folder / "index.json").write_bytes(content)
        refused("index.json: not readable", get, folder, model(4, 4))
    (folder / "index.json").write_text("[]")
    refused("no index that can be used here", get, folder, model(4, 4))
