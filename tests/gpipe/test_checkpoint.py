"""Checkpoints: the same bits at any K, always one whole checkpoint, damage refused in one line."""

import io
import os
import pickle
import re
import threading
from collections import Counter

import pytest
import torch
from checkpoints import Stages, get, holder, interrupted, model, named, put, stepped
from compare import same, snapshot
from examples import linear, noisy, refused
from leftovers import until
from torch import nn

from repro.gpipe import Pipeline, launch
from repro.gpipe.checkpoint.save_load import INDEX, whole_state_dict
from repro.gpipe.runtime.launch import StageError

LAYERS = ["0", "1"]  # of two stages of one layer each
SGD, Adam = torch.optim.SGD, torch.optim.Adam


def test_training_goes_on_bit_for_bit_at_any_k(tmp_path):
    """Dropout, batch norm, two groups, a changed learning rate, a stage without parameters."""
    launch(interrupted, tmp_path, stages=3)
    for kind in ("SGD", "Adam"):
        states = {path.name: whole_state_dict(path) for path in (tmp_path / kind).iterdir()}
        assert same(states["straight"], states["1"])
        assert same(states["straight"], states["3"])
        assert not same(states["straight"], states["half"])
    unsplit = nn.Sequential(*(make() for make in noisy()))
    unsplit.load_state_dict(states["3"])
    assert list(states["3"]) == list(unsplit.state_dict())


def test_loads_in_place_and_bit_for_bit(tmp_path):
    """Optimizer state too: a step count stays on the CPU as a float of its own, strides stay."""

    def channels_last():
        conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        return named({"0": conv, "1": nn.BatchNorm2d(4)})

    module, other = channels_last(), channels_last()
    module[1].register_buffer("scratch", torch.ones(1), persistent=False)
    optimizer = stepped(module, "Adam", foreach=False)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer.param_groups[0]["lr"] = torch.tensor(0.05)
    odd = torch.tensor([float("nan"), float("-inf"), -0.0, 1e-45])
    module.get_parameter("0.bias").data.copy_(odd)
    put(tmp_path, module, optimizer, step=7, extra={"epoch": 2})
    fresh = Adam(other.parameters(), lr=9.0, eps=1.0, foreach=True)
    parameters = list(other.parameters())
    restored = get(tmp_path, other, fresh)
    assert (restored.step, restored.extra) == (7, {"epoch": 2})
    assert all(a is b for a, b in zip(parameters, other.parameters(), strict=True))
    for key, value in module.state_dict().items():
        assert value.numpy().tobytes() == other.state_dict()[key].numpy().tobytes(), key
    assert "1.scratch" not in whole_state_dict(tmp_path)
    for ours, theirs in zip(module.parameters(), parameters, strict=True):
        assert same(optimizer.state[ours], fresh.state[theirs])
        assert fresh.state[theirs]["exp_avg"].stride() == optimizer.state[ours]["exp_avg"].stride()
    group = fresh.param_groups[0]
    assert (group["lr"], group["initial_lr"], group["eps"]) == (torch.tensor(0.05), 0.1, 1e-8)
    assert group["foreach"], "how to compute is this process's choice"


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (model(4, 4), r"its layers are \['0', '1'\], this model's are \['0'\]; build"),
        (model(4, 4, 5), r"1\.weight is float32 \[4, 4\] there, and float32 \[5, 4\] in this"),
        (model(4, 4, 4).double(), r"0\.weight is float32 \[4, 4\] there, and float64"),
        (named({"0": nn.Linear(4, 4), "1": nn.ReLU()}), r"1\.weight is float32.*, and missing in"),
        (
            named({"0": nn.Linear(4, 4), "1": nn.Sequential(nn.Linear(4, 4))}),
            r"1\.0\.weight is missing there",
        ),
    ],
)
def test_another_model_is_refused_and_left_alone(tmp_path, other, words):
    put(tmp_path, model(4, 4, 4))
    before = snapshot(other)
    refused(words, get, tmp_path, other)
    assert same(before, other.state_dict())


def test_another_optimizer_is_refused_and_the_weights_left_alone(tmp_path):
    module, other = model(4, 4, 4), model(4, 4, 4, seed=3)

    def grouped(of, **options):
        rates = zip(of, (0.1, 0.2), strict=True)
        return SGD([{"params": layer.parameters(), "lr": lr} for layer, lr in rates], **options)

    one_group = stepped(module, "SGD", momentum=0.9)
    put(tmp_path / "none", module)
    put(tmp_path / "one", module, one_group)
    put(tmp_path / "two", module, grouped(module))
    put(tmp_path / "first", module, SGD(module[0].parameters()))
    before = snapshot(other)
    two, everything = grouped(other, momentum=0.9), SGD(other.parameters())
    for folder, fresh, words in (
        ("none", everything, r"0\.bias is in only one of the saved optimizer"),
        ("one", Adam(other.parameters()), "saved with SGD, not Adam"),
        ("one", SGD(other[0].parameters()), r"1\.\w+ is in only one of the saved optimizer"),
        ("first", everything, r"1\.\w+ is in only one of the saved optimizer"),
        ("two", everything, r"in one group.*'lr': 0\.1.*'lr': 0\.2"),
        ("one", "sgd", "optimizer: 'sgd' is no optimizer"),
        ("one", SGD(module.parameters()), r"of shape \(4, 4\) is not of this stage's layers"),
    ):
        refused(words, get, tmp_path / folder, other, fresh)
        assert same(before, other.state_dict())
        assert isinstance(fresh, str) or not fresh.state
        assert [group["lr"] for group in two.param_groups] == [0.1, 0.2]
    get(tmp_path / "one", other)
    assert same(other.state_dict(), module.state_dict())


def test_what_cannot_be_saved_and_where(tmp_path):
    folder, module = tmp_path / "run", model(4, 4)
    with_hook = stepped(module)
    with_hook.param_groups[0]["hook"] = print
    refused("builtins.print cannot be saved; use tensors", put, folder, module, with_hook)
    generator = {"generator": torch.Generator()}
    refused("Generator.* cannot be saved; use tensors", put, folder, module, extra=generator)
    assert not [*folder.iterdir()]
    state = {"best": float("inf"), "generator": 2**127, 1: None, "milestones": Counter([2, 4])}
    put(folder, module, extra=state)
    assert get(folder, module).extra == state
    pipe = Pipeline([linear], 1, 1, device="cpu")
    refused(r"none: stage 0 .*No such file.*index.pt", pipe.load, tmp_path / "none")
    (tmp_path / "file").touch()
    refused(r"stage 0 .*File exists", pipe.save, tmp_path / "file")


def test_what_one_stage_cannot_do_stops_all_and_the_old_checkpoint_stays(tmp_path):
    folder = tmp_path / "run"
    put(folder, old := model(4, 4, 4))
    (tmp_path / "file").write_text("no folder")

    def elsewhere(all_ranks):
        where = tmp_path / "file" / "run" if all_ranks.rank else folder
        made = model(4, 4, first=all_ranks.rank)
        put(where, made, of=holder(made, all_ranks, LAYERS))

    for error in Stages(2).all(elsewhere):
        assert isinstance(error, ValueError)
        assert re.search("stage 1 on .*Not a directory", str(error))
    assert same(whole_state_dict(folder), old.state_dict())
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize("meeting", [1, 2])
def test_a_stage_that_dies_leaves_a_whole_checkpoint(tmp_path, meeting):
    """The others' gather fails, before or after the commit; the next save cleans up."""
    put(tmp_path, model(4, 4, 4, seed=5), step=1)
    stages = Stages(2)

    def one(all_ranks, deadline=meeting):
        met, gather = [], all_ranks.all_gather

        def dying(value):
            met.append(value)
            if all_ranks.rank == 1 and len(met) == deadline:
                # until the first stage has done what comes before this gather
                until(lambda: stages.barrier.n_waiting, 20)
                stages.barrier.abort()
            return gather(value)

        all_ranks.all_gather = dying
        made = model(4, 4, first=all_ranks.rank)
        put(tmp_path, made, step=2, of=holder(made, all_ranks, LAYERS))

    assert all(isinstance(error, threading.BrokenBarrierError) for error in stages.all(one))
    assert get(tmp_path, model(4, 4, 4)).step == (1 if meeting == 1 else 2)
    stages.barrier.reset()
    assert stages.all(lambda all_ranks: one(all_ranks, deadline=0)) == [None, None]
    assert len(list(tmp_path.iterdir())) == 3


def killed_at(moment, folder, module):
    """Save in a forked process that dies at the given disk call; whether it died."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    try:
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
    finally:
        os._exit(0)  # else an error would run the rest of pytest once more


def test_killed_at_any_moment(tmp_path):
    """Also: files of earlier saves go, and other files stay."""
    old, new = model(4, 4, seed=1), model(4, 4, seed=2)
    steps = []
    for moment in range(100):
        folder = tmp_path / str(moment)
        put(folder, old, step=1)
        (folder / "stage0.pt").write_text("the user's")
        died = killed_at(moment, folder, new)
        steps.append(get(folder, model(4, 4)).step)
        assert same(whole_state_dict(folder), (old if steps[-1] == 1 else new).state_dict())
        put(folder, old, step=3)
        assert len(list(folder.iterdir())) == 3
        if not died:
            break
    assert steps == sorted(steps)
    assert (steps[0], steps[-1]) == (1, 2)
    assert steps.count(1) > 8
    assert steps.count(2) > 3


def test_a_stage_s_file_of_another_save_changes_no_stage(tmp_path):
    """Keys, shapes and size are the same; the other stage learns it before it changes."""
    stages = Stages(2)

    def of(call, seed):
        made = [model(4, 4, first=rank, seed=seed) for rank in range(2)]
        before = [snapshot(module) for module in made]
        found = stages.all(
            lambda all_ranks: call(
                tmp_path / "run",
                made[all_ranks.rank],
                of=holder(made[all_ranks.rank], all_ranks, LAYERS),
            )
        )
        return found, [same(a, b.state_dict()) for a, b in zip(before, made, strict=True)]

    of(put, 5)
    (other,) = (tmp_path / "run").glob("stage1-*.pt")
    whole = other.read_bytes()
    put(tmp_path / "other", model(4, 4, first=1, seed=8))
    (foreign,) = (tmp_path / "other").glob("stage*.pt")
    assert foreign.stat().st_size == len(whole)
    other.write_bytes(foreign.read_bytes())
    errors, unchanged = of(get, 9)
    for error in errors:
        assert "stage 1 on" in str(error)
        assert "it was saved as stage0-" in str(error)
        assert "\n" not in str(error)
    assert unchanged == [True, True]
    other.write_bytes(whole)
    assert of(get, 9)[1] == [False, False]


def test_damaged_files(tmp_path):
    put(tmp_path, model(4, 4), step=3)
    (path,), index = tmp_path.glob("stage*.pt"), tmp_path / INDEX
    whole, entries = path.read_bytes(), index.read_bytes()
    flipped, edited = bytearray(whole), bytearray(entries)
    flipped[whole.index(model(4, 4).get_parameter("0.weight").detach().numpy().tobytes())] ^= 1
    edited[entries.index(b"stage0-")] ^= 1
    other = io.BytesIO()
    torch.save({"format": 3, "name": INDEX, "content": {}}, other)
    for file, content, words in (
        (path, whole[: len(whole) // 2], "stage0-.*: BadZipFile: .*; take another checkpoint"),
        (path, bytes(flipped), "stage0-.*data/0 in it is damaged; take another checkpoint"),
        (index, bytes(edited), "index.pt: .*data.pkl in it is damaged"),
        (index, b"", "index.pt: BadZipFile"),
        (index, b"{" * 100_000, "index.pt: BadZipFile"),
        (index, other.getvalue(), "format 3, and only 4 is known"),
        (index, whole, "it was saved as stage0-"),
    ):
        file.write_bytes(content)
        refused(words, get, tmp_path, model(4, 4))
        refused(words, whole_state_dict, tmp_path)
        path.write_bytes(whole)
        index.write_bytes(entries)
    path.unlink()
    refused("No such file or directory: .*stage0-", get, tmp_path, model(4, 4))


def loading(folder):
    Pipeline([nn.Linear(4, 4), nn.Linear(4, 4)], 2, 2, device="cpu").load(folder)


@pytest.mark.slow
def test_a_damaged_checkpoint_is_one_line_of_a_launch(tmp_path):
    for name in ("index", "file"):
        put(tmp_path / name, model(4, 4, 4))
    (tmp_path / "index" / INDEX).write_text("{")
    next((tmp_path / "file").glob("stage*.pt")).unlink()
    for name, words in (("index", "BadZipFile"), ("file", "No such file")):
        with pytest.raises(StageError, match=words) as caught:
            launch(loading, tmp_path / name, stages=2)
        assert "\n" not in str(caught.value)


class Malicious:
    def __reduce__(self):
        return os.mkdir, ("ran",)


def test_files_that_were_made_on_purpose_run_nothing(tmp_path, monkeypatch):
    """Their checksums are right, so what is left to refuse them is how they are read."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "run"
    put(folder, model(4, 4))
    (path,), index = folder.glob("stage*.pt"), folder / INDEX
    whole, entries, malicious = path.read_bytes(), index.read_bytes(), io.BytesIO()
    torch.save(Malicious(), malicious)
    for content, words in (
        (malicious.getvalue(), "Weights only load failed"),
        (pickle.dumps(Malicious()), "BadZipFile"),
    ):
        for file in (path, index):
            file.write_bytes(content)
            refused(words, get, folder, model(4, 4))
            refused(words, whole_state_dict, folder)
            path.write_bytes(whole)
            index.write_bytes(entries)
    assert not (tmp_path / "ran").exists()
    (tmp_path / "stage0.pt").write_bytes(whole)
    forged = torch.load(index, weights_only=True)
    forged["content"]["files"] = {"../stage0.pt": ["0"]}
    torch.save(forged, index)
    refused("stage0.pt: leads out of", get, folder, model(4, 4))


def test_only_the_folder_itself_may_be_a_link(tmp_path):
    folder, disk, theirs = tmp_path / "run", tmp_path / "disk", tmp_path / "theirs"
    disk.mkdir()
    folder.symlink_to(disk)
    put(folder, model(4, 4))
    for path in [*disk.iterdir(), disk / f".index.pt.{os.getpid()}"]:
        theirs.touch()
        if is_read := path.exists():
            path.replace(theirs)
        path.symlink_to(theirs)
        before = theirs.read_bytes(), {*disk.iterdir()}
        refused(f"{path.name}: is a link", put, folder, model(4, 4))
        if is_read:
            refused(f"{path.name}: is a link", whole_state_dict, folder)
        assert (theirs.read_bytes(), {*disk.iterdir()}) == before
        theirs.replace(path)
    (disk / "notes").symlink_to(theirs)
    put(folder, model(4, 4))
