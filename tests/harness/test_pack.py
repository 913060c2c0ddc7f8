"""Packed results, such as the committed reference, are read where they lie; links lead nowhere."""

import json
import re
import shutil
from pathlib import Path

import pytest
from shown import RUN, Seen, again, folder_in, seen

from repro.cli.why import find
from repro.harness.pack import RECORDS, TIMELINES, Files, pack
from repro.harness.results import load
from repro.report import page

REFERENCE = Path(__file__).parents[2] / "results/reference"


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """A results folder that holds nothing but the two files of one experiment."""
    (source,) = REFERENCE.glob("*/laptop/breakdown")
    folder = tmp_path / "results" / Path(*source.parts[-3:])
    folder.mkdir(parents=True)
    for name in (RECORDS, TIMELINES):
        shutil.copy(source / name, folder)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    """Every file of a folder; what a link leads to does not count."""
    paths = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def show(results: Path) -> None:
    """Read all that a report shows."""
    shown = load(results)
    page._environments(shown)
    shown.timeline(shown.runs[0])


def test_packed_results_are_read_where_they_lie_and_nothing_is_written(packed: Path):
    before = content(packed)
    results = load(packed.parents[2])
    assert set(results.rows["status"]) == {"done"}
    assert all(results.timeline(run) for run in results.runs)
    find(results.runs[0].id, packed.parents[2])
    assert Files(packed).pack() == before
    pack(packed)
    assert content(packed) == before


def test_unpacked_results_are_the_same_and_packed_the_same(packed: Path):
    before = content(packed)
    rows = load(packed.parents[2]).rows
    Files(packed).unpack()
    assert (packed / "experiment.json").exists()
    assert load(packed.parents[2]).rows.equals(rows)
    pack(packed)
    assert {name: data for name, data in content(packed).items() if name in before} == before


def test_a_run_goes_on_where_results_are_packed(recorded: tuple[Path, Seen], tmp_path: Path):
    source, whole = recorded
    folder = folder_in(tmp_path)
    folder.mkdir(parents=True)
    for name, data in Files(folder_in(source)).pack().items():
        (folder / name).write_bytes(data)
    assert seen(tmp_path) == whole
    again(tmp_path, rounds=3)
    after = seen(tmp_path)
    assert whole.behind(after)
    assert len(after.lines) == len(whole.lines) + 2
    assert (folder / RUN / "metrics.jsonl").exists()


def test_what_was_measured_since_stays(packed: Path):
    Files(packed).unpack()
    path = packed / "experiment.json"
    about = json.loads(path.read_text())
    path.write_text(json.dumps({**about, "title": "measured again"}))
    assert "measured again" in Files(packed).text(path.name)
    whole = (packed / RECORDS).read_bytes()
    (packed / RECORDS).write_bytes(whole[: whole.rindex(b"\n", 0, -1) + 1])  # as git may bring
    before = content(packed)
    with pytest.raises(ValueError, match=r"records.jsonl: has changed, and what lies beside it"):
        Files(packed).write("status.json", b"{}")
    assert content(packed) == before
    (packed / RECORDS).write_bytes(whole)
    pack(packed)
    (packed / ".unpacked").unlink()
    path.write_text("{}")
    assert "measured again" in Files(packed).text(path.name), "other packed files count"


@pytest.mark.parametrize(
    "name",
    [
        "experiment.json",
        "rounds",
        "RUN",
        *(f"RUN/{each}.json" for each in ("spec", "status", "env")),
        "RUN/metrics.jsonl",
        "RUN/timeline.parquet",
    ],
)
def test_no_link_is_followed_out_of_a_results_folder(packed: Path, tmp_path: Path, name: str):
    """Of files that lie outside nothing is shown or packed, and nothing is written there."""
    Files(packed).unpack()
    for data in (RECORDS, TIMELINES):
        (packed / data).unlink()
    results = packed.parents[2]
    run = load(results).runs[0].id
    link, outside = packed / name.replace("RUN", run), tmp_path / "outside"
    shutil.move(link, outside)
    before = content(tmp_path)
    link.symlink_to(outside)
    refused = rf"^{re.escape(str(link))}\S*: a link leads out of"
    with pytest.raises(ValueError, match=refused):
        show(results)
    with pytest.raises(ValueError, match=refused):
        Files(packed, results).pack()
    if outside.is_dir():
        with pytest.raises(ValueError, match=refused):
            Files(packed, results).write(f"{link.name}/status.json", b"{}")
    assert content(tmp_path) == before
    # A link that stays inside, and one to the whole folder, are the user's own.
    link.unlink()
    shutil.move(outside, results / "elsewhere")
    link.symlink_to(results / "elsewhere")
    (tmp_path / "mine").symlink_to(results)
    assert run in {run.id for run in load(tmp_path / "mine").runs if run.rounds}


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '{"file": "../outside.json", "lines": [{}]}',
        '{"file": "/tmp/outside.json", "lines": [{}]}',
        "{}",
    ],
)
def test_a_damaged_pack_is_one_line(packed: Path, line: str):
    (packed / RECORDS).write_text(line + "\n")
    with pytest.raises(
        ValueError, match=r"^\S+records.jsonl: not as it was packed \(.*\); restore it with git$"
    ):
        load(packed.parents[2])
