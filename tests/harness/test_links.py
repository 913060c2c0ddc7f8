"""No verb reads, writes or deletes through a link in a folder of results or of a report."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes import FakeWorkers

from repro.cli.main import main
from repro.harness import runner
from repro.harness import wandb as copies
from repro.io import lock

SMALL = "--model transformer --model-args L=2 d=16 H=16 heads=2 V=16 T=8 --K 1 --M 1 --N 8"
SWEEP = f"sweep {SMALL} --recompute never --rounds 1 --scale smoke"
REPORTS = [f"run {SWEEP} --plots plots", "report"]
VERBS = [*REPORTS, f"run {SWEEP} --force", f"plan {SWEEP}", "report --runs"]
LATER = [  # what other runs would make; {0} is the machine's folder
    *("{0}/smoke/logs", "{0}/smoke/sweep/timelines/x", "results/wandb"),
    "results/run.log",
    *("results/wandb/cache/wandb", "results/wandb/data/artifacts"),
    *("plots/claims.csv", "plots/sweep_speedup.png"),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with results and their report; nothing is really measured, or sent to W&B."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder))
        patch.chdir(folder)
        patch.setattr(runner, "Workers", lambda *_: FakeWorkers())
        patch.setattr("wandb.init", None)
        assert main(VERBS[0].split()) == 0
        shutil.rmtree("results/wandb", ignore_errors=True)
        yield folder


def link(place: Path, victim: Path) -> None:
    """Put a link in place of a file or folder, to one with the same names and other content."""
    if place.exists():
        place.rename(victim)
    elif place.suffix:
        victim.touch()
    else:
        victim.mkdir()
    if victim.is_dir():
        (victim / "thesis").touch()
    for path in [victim, *victim.rglob("*")]:
        if path.is_file():
            path.write_text("years of work")
            os.utime(path, ns=(0, path.stat().st_mtime_ns))
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(victim)


def state(folder: Path) -> dict[Path, tuple[int, int]]:
    """When each file and folder was written, and its size, but for the lock."""
    paths = [path for path in (folder, *folder.rglob("*")) if path.name != lock.NAME]
    return {path: (path.lstat().st_mtime_ns, path.lstat().st_size) for path in paths}


def was_read(folder: Path) -> bool:
    paths = [path for path in (folder, *folder.rglob("*")) if path.is_file()]
    return any(path.stat().st_atime_ns for path in paths)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_whatever_is_a_link_is_named_or_left_alone(made: Path, tmp_path, monkeypatch, capfd):
    """Each file and folder in turn, also those that other runs would make."""
    there = [
        path.relative_to(made) for name in ("results", "plots") for path in (made / name).rglob("*")
    ]
    (machine,) = (path.parents[1] for path in there if path.name == "sweep")
    for number, place in enumerate([*there, *(Path(path.format(machine)) for path in LATER)]):
        folder, victim = tmp_path / f"{number}", tmp_path / f"{number}-linked"
        monkeypatch.chdir(shutil.copytree(made, folder))
        monkeypatch.setattr(copies, "_printed", set())
        link(place, victim)
        linked, naming = state(victim), []
        for verb in VERBS if "results" in place.parts else REPORTS:
            before = state(folder)
            code = main(verb.split())
            error = capfd.readouterr().err
            if f"{place}: is a link" in error:
                naming.append(verb)
            else:
                assert code == 0, f"{verb}: {error}"
            if code:
                assert error.count("\n") == 1
                assert state(folder) == before, f"{verb} checks {place} too late"
            assert place.readlink() == victim
            assert state(victim) == linked, f"{verb} writes to {place}"
            assert not was_read(victim), f"{verb} reads {place}"
        assert naming, f"nothing reads or writes {place}"
