"""The files of a checkpoint: always one whole checkpoint; damage is refused in one line."""

import json
import os
import pickle
import resource
import threading
import time

import pytest
import torch
from checkpoints import Stages, forge, get, model, put, refused, same

from repro.gpipe.checkpoint.save_load import load, whole_state_dict

LAYERS = ["0", "1"]  # of two stages of one layer each


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
        module = model(4, 4, first=rank)
        put(where, module, step=9, rank=rank, gather=gather, layers=["0", "1", "2"])

    for error in Stages(3).all(one):
        assert isinstance(error, OSError)
        assert "stage 1 on" in str(error)
        assert "Not a directory" in str(error)
    assert same(before, whole_state_dict(folder))
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize("meeting", [1, 2, 3])
def test_a_stage_that_dies_leaves_a_whole_checkpoint(tmp_path, meeting):
    """The others' gather fails, before or after the commit; the next save cleans up."""
    put(tmp_path, model(4, 4, 4, seed=5), step=1)
    stages = Stages(2)

    def one(rank, gather, deadline=meeting):
        met = []

        def dying(value):
            met.append(value)
            if rank == 1 and len(met) == deadline:
                # until the first stage has done what comes before this gather
                while not stages.barrier.n_waiting:
                    time.sleep(0.001)
                stages.barrier.abort()
            return gather(value)

        module = model(4, 4, first=rank)
        put(tmp_path, module, step=2, rank=rank, gather=dying, layers=LAYERS)

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
    """Save in a forked process that dies at the given disk call; whether it died."""
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


@pytest.mark.parametrize("change", [{"step": 9}, {"extra": {"epoch": 9}}, {"optimizer": "SGD"}])
def test_an_index_that_is_not_as_it_was_saved(tmp_path, change):
    put(tmp_path, model(4, 4), step=3, extra={"epoch": 2})
    index = tmp_path / "index.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | change))
    refused(r"it was changed after save\(\) wrote it", get, tmp_path, model(4, 4))
    refused(r"it was changed after save\(\) wrote it", whole_state_dict, tmp_path)


def test_a_stage_s_file_of_another_save_changes_no_stage(tmp_path):
    """Keys, shapes and size are the same; the other stage learns it before it changes."""
    stages = Stages(2)

    def save_one(rank, gather):
        module = model(4, 4, first=rank, seed=5)
        put(tmp_path / "run", module, rank=rank, gather=gather, layers=LAYERS)

    stages.all(save_one)
    (other,) = (tmp_path / "run").glob("stage1-*.pt")
    whole = other.read_bytes()
    put(tmp_path / "other", model(4, 4, first=1, seed=8))
    (foreign,) = (tmp_path / "other").glob("*.pt")
    assert foreign.stat().st_size == len(whole)
    other.write_bytes(foreign.read_bytes())
    modules = [model(4, 4, first=rank, seed=9) for rank in range(2)]
    before = [
        {key: value.clone() for key, value in module.state_dict().items()} for module in modules
    ]

    def load_one(rank, gather):
        return load(
            tmp_path / "run", rank=rank, gather=gather, module=modules[rank], layers=["0", "1"]
        )

    for error in stages.all(load_one):
        assert "stage 1 on" in str(error)
        assert "its SHA-256 is not the one in index.json" in str(error)
        assert "\n" not in str(error)
    assert all(same(old, module.state_dict()) for old, module in zip(before, modules, strict=True))
    other.write_bytes(whole)
    assert not any(isinstance(found, Exception) for found in stages.all(load_one))


def test_extra_comes_back_as_json_keeps_it_or_is_refused_when_it_is_saved(tmp_path):
    state = {"best": float("inf"), "generator": 2**127, "none": None, "text": "ä"}
    put(tmp_path, model(4, 4), extra=state)
    assert get(tmp_path, model(4, 4)).extra == state
    for extra, words in (
        ({1: "a", "1": "b"}, "extra: JSON turns its key 1 into a string"),
        ({"set": {1}}, "extra: .*use numbers, strings"),
    ):
        with pytest.raises(ValueError, match=words):
            put(tmp_path, model(4, 4), extra=extra)
    assert get(tmp_path, model(4, 4)).extra == state


class Malicious:
    def __reduce__(self):
        return os.mkdir, ("ran",)


def test_damaged_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "run"
    refused("no index.json there", get, folder, model(4, 4))
    folder.mkdir(exist_ok=True)
    (folder / "index.json").write_text("[" * 100_000)
    refused("too many lists", get, folder, model(4, 4))
    put(folder, model(4, 4))
    (path,) = folder.glob("*.pt")
    whole = path.read_bytes()
    weight = whole.index(model(4, 4).get_parameter("0.weight").detach().numpy().tobytes())
    flipped = bytearray(whole)
    flipped[weight] ^= 1
    for content, words in (
        (whole[: len(whole) // 2], r"it has \d+ bytes, and save\(\) wrote"),
        (b"", "it has 0 bytes"),
        (
            bytes(flipped),
            "its SHA-256 is not the one in index.json, so it is damaged or of another save",
        ),
    ):
        path.write_bytes(content)
        refused(words, get, folder, model(4, 4))
        refused(words, whole_state_dict, folder)
    path.unlink()
    refused("is not there, but index.json names it", get, folder, model(4, 4))
    for content, words in (
        (b"{", "not readable as JSON"),
        (b"\xff\xff", "is no UTF-8"),
        (b"", "not readable as JSON"),
    ):
        (folder / "index.json").write_bytes(content)
        refused(f"index.json: {words}", get, folder, model(4, 4))
    (folder / "index.json").write_text("[]")
    refused("format None", get, folder, model(4, 4))


def test_files_that_were_made_on_purpose_run_nothing(tmp_path, monkeypatch):
    """Their digests are right, so what is left to refuse them is how they are read."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "run"
    put(folder, model(4, 4))
    (path,) = folder.glob("*.pt")
    torch.save({"model": {"0.weight": torch.ones(4, 4)}, "optimizer": None}, "other.pt")
    torch.save({"model": Malicious(), "optimizer": None}, "malicious.pt")
    for content, words in (
        ((tmp_path / "other.pt").read_bytes(), "keys, shapes or types are not those in index.json"),
        ((tmp_path / "malicious.pt").read_bytes(), "Weights only load failed"),
        (pickle.dumps(Malicious()), "mmap can only be used"),
    ):
        path.write_bytes(content)
        forge(folder)
        refused(words, get, folder, model(4, 4))
        refused(words, whole_state_dict, folder)
    assert not (tmp_path / "ran").exists()


def test_an_index_names_no_file_elsewhere(tmp_path):
    put(tmp_path, model(4, 4))
    forge(tmp_path, {"files": {"../stage0.pt": {"size": 1, "sha256": "0", "kinds": {}}}})
    refused(r"'\.\./stage0\.pt' is no name of a stage's file", get, tmp_path, model(4, 4))
