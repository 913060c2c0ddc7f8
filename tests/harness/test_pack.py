"""The committed reference results: two files for each experiment, unpacked once where they are
read."""

import json
import shutil
from pathlib import Path

import pytest

from repro.harness.pack import RECORDS, TIMELINES, pack, unpack
from repro.harness.results import load

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


def test_what_is_packed_is_read_and_packed_the_same(packed: Path):
    before = [(packed / name).read_bytes() for name in (RECORDS, TIMELINES)]
    results = load(packed.parents[2])
    assert len(results.rows) > 1
    assert set(results.rows["status"]) <= {"done"} | {
        s for s in results.rows["status"] if s.startswith("skipped")
    }
    assert any(results.timeline(run) for run in results.runs)
    pack(packed)
    assert [(packed / name).read_bytes() for name in (RECORDS, TIMELINES)] == before


def test_what_was_measured_since_stays(packed: Path):
    unpack(packed)
    path = packed / "experiment.json"
    about = json.loads(path.read_text())
    path.write_text(json.dumps({**about, "title": "measured again"}))
    unpack(packed)
    assert json.loads(path.read_text())["title"] == "measured again"
    pack(packed)
    path.unlink()
    (packed / ".unpacked").unlink()
    unpack(packed)
    assert json.loads(path.read_text())["title"] == "measured again"


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


def test_a_pack_without_its_timelines_is_one_line_that_names_the_file(packed: Path):
    (packed / TIMELINES).unlink()
    with pytest.raises(ValueError, match=r"^\S+timelines.parquet: is missing .* with git$"):
        load(packed.parents[2])
