"""Records that people edited, that an older version wrote, that kills left behind: each has one
outcome."""

import json
import math
import re
import shutil
import warnings
from pathlib import Path

import pytest
from crew import Crew, measure
from shown import BASE, RUN, SWEEP, Seen, again, assert_told, assert_whole_again, folder_in, seen

from repro.cli.main import main
from repro.report import page


@pytest.mark.parametrize(
    ("name", "field", "value", "words"),
    [
        ("metrics.jsonl", "step_s", [0.1, 0.1, 0.1], "line 1, not as it was recorded"),
        ("metrics.jsonl", "step_s", [1e300], "line 1, step_s.0: .*less than or equal to"),
        ("metrics.jsonl", "step_s", [-1.0], "line 1, step_s.0: .*greater than"),
        ("metrics.jsonl", "loss", [math.nan], "line 1, holds nan"),
        ("metrics.jsonl", "setup_s", "0.1", "line 1, setup_s: .*number"),
        (
            "metrics.jsonl",
            "peak_bytes",
            [10**400, 1],
            "line 1, holds an integer of more than 64 bits",
        ),
        ("metrics.jsonl", "round", "timed-0009", "no line of timed-0001"),
        ("spec.json", "N", 64, "does not give the run's id"),
        ("spec.json", "seed", 1, "does not give the run's id"),
        ("spec.json", "M", 64, "M = 64 micro-batches"),
        ("spec.json", "self", 1, "no field 'self'"),
        ("status.json", "status", "finished", "status: .*'done'"),
        ("status.json", "rounds", -1, "rounds: .*greater than or equal to 0"),
        ("env.json", "os", "\ud800", "a lone surrogate"),
    ],
)
def test_an_edited_number_is_never_shown(
    recorded: tuple[Path, Seen], tmp_path: Path, name: str, field: str, value: object, words: str
):
    source, whole = recorded
    shutil.copytree(source, tmp_path, dirs_exist_ok=True)
    path = folder_in(tmp_path) / RUN / name
    first, *others = path.read_text().splitlines() if name.endswith("jsonl") else [path.read_text()]
    path.write_text("\n".join([json.dumps({**json.loads(first), field: value}), *others]))
    after = seen(tmp_path)
    assert_told(after, path, whole)
    assert re.search(words, after.warned[0])
    assert_whole_again(tmp_path, whole)


def test_a_line_that_is_only_spaced_otherwise_or_there_twice_counts_once(
    recorded: tuple[Path, Seen], tmp_path: Path
):
    source, whole = recorded
    shutil.copytree(source, tmp_path, dirs_exist_ok=True)
    path = folder_in(tmp_path) / RUN / "metrics.jsonl"
    first, second = path.read_text().splitlines()
    path.write_text(f"{first}\n{first.replace(': ', ':')}\r\n\n{second}")
    assert seen(tmp_path) == whole


def test_a_run_whose_lines_are_gone_is_not_called_done(recorded: tuple[Path, Seen], tmp_path: Path):
    shutil.copytree(recorded[0], tmp_path, dirs_exist_ok=True)
    (folder_in(tmp_path) / RUN / "metrics.jsonl").unlink()
    assert [row["status"] for row in seen(tmp_path).rows] == ["done", "planned"]


def test_an_edited_experiment_is_told_for_each_run(recorded: tuple[Path, Seen], tmp_path: Path):
    """Whether its version or a spec was changed cannot be told apart."""
    source, whole = recorded
    shutil.copytree(source, tmp_path, dirs_exist_ok=True)
    path = folder_in(tmp_path) / "experiment.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 2}))
    after = seen(tmp_path)
    assert after.rows == []
    assert [line.partition(" is left out")[0] for line in after.warned] == [
        str(folder_in(tmp_path) / run / "spec.json") for run in (BASE, RUN)
    ]
    assert_whole_again(tmp_path, whole)


def test_a_record_of_an_older_version_is_left_out_once_and_measured_again(
    recorded: tuple[Path, Seen], tmp_path: Path
):
    source, whole = recorded
    shutil.copytree(source, tmp_path, dirs_exist_ok=True)
    path = folder_in(tmp_path) / "rounds" / "timed-0001.json"
    marker = json.loads(path.read_text())
    # as it was before digests
    path.write_text(json.dumps({**marker, "runs": list(marker["runs"])}))
    assert_told(seen(tmp_path), path, whole)
    assert_whole_again(tmp_path, whole)


def test_an_experiment_s_new_version_is_measured_beside_the_old_one(
    recorded: tuple[Path, Seen], tmp_path: Path
):
    shutil.copytree(recorded[0], tmp_path, dirs_exist_ok=True)
    assert measure(tmp_path, Crew(), SWEEP.model_copy(update={"version": 2})) == 0
    after = seen(tmp_path)
    assert after.warned == []
    assert not {row["run"] for row in after.rows} & {BASE, RUN}
    assert [row["status"] for row in after.rows] == ["done", "done"]
    assert len(list(folder_in(tmp_path).glob("*/metrics.jsonl"))) == 4, "nothing is deleted"


def test_what_kills_left_behind_is_removed_by_the_next_run(
    recorded: tuple[Path, Seen], tmp_path: Path
):
    source, whole = recorded
    shutil.copytree(source, tmp_path, dirs_exist_ok=True)
    folder = folder_in(tmp_path)
    logs = folder.with_name("logs")
    left = [
        folder / ".experiment.json.1",
        folder / RUN / ".metrics.jsonl.23",
        folder / "rounds" / ".timed-0003.json.4",
    ]
    left += [
        folder.with_name("other") / RUN / ".timeline.parquet.5",
        logs / "1" / "0" / "stdout.log",
    ]
    said = logs / "2" / "0" / "stderr.log"
    for path in [*left, said]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("Traceback" if path == said else "")
    assert seen(tmp_path) == whole
    again(tmp_path)
    assert not [path for path in left if path.exists()]
    assert [path.name for path in logs.iterdir()] == ["2"]
    assert said.exists()


def test_a_damaged_file_is_warned_of_once_by_the_command(
    recorded: tuple[Path, Seen], tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    shutil.copytree(recorded[0], tmp_path, dirs_exist_ok=True)
    path = folder_in(tmp_path) / RUN / "metrics.jsonl"
    path.write_text("{")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("default")
        patch.setattr(page.figures, "draw_all", lambda *_: [])
        assert main(["report", "--results", str(tmp_path), "--plots", str(tmp_path / "plots")]) == 0
    told = capfd.readouterr().err.splitlines()
    assert len(told) == 1
    assert told[0].startswith(f"warning: {path} is left out: line 1, ")
