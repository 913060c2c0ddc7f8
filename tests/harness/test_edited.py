"""Records that people edited, that an older version wrote, that kills left behind: each has one
outcome."""

import json
import math
import shutil
from pathlib import Path

import pytest
from crew import Crew, measure
from shown import BASE, RUN, SWEEP, Seen, again, assert_stops, folder_in, seen

from repro.cli.main import main


@pytest.mark.parametrize(
    ("name", "field", "value", "words"),
    [
        ("metrics.jsonl", "step_s", [0.1, 0.1, 0.1], "line 1, not as it was recorded"),
        ("metrics.jsonl", "loss", [math.nan], "line 1, holds nan"),
        ("metrics.jsonl", "peak_bytes", [10**400, 1], "line 1, .* more than 64 bits"),
        ("metrics.jsonl", "round", "timed-0009", "timed-0001 cannot be read .no such line"),
        ("spec.json", "N", 64, "does not give the run's id|not as it was recorded"),
        ("spec.json", "M", 64, "M = 64 micro-batches"),
        ("spec.json", "self", 1, "no field 'self'"),
        ("status.json", "status", "finished", "status = 'finished': .*done"),
        ("status.json", "rounds", -1, "rounds = -1: allowed is 0 or more"),
        ("status.json", "rounds", 3, "3 rounds of it were recorded, .* has 2"),
        ("env.json", "os", "\ud800", "a lone surrogate"),
    ],
)
def test_an_edited_number_is_never_shown(
    recorded: tuple[Path, Seen], tmp_path: Path, name: str, field: str, value: object, words: str
):
    shutil.copytree(recorded[0], tmp_path, dirs_exist_ok=True)
    path = folder_in(tmp_path) / RUN / name
    first, *others = path.read_text().splitlines() if name.endswith("jsonl") else [path.read_text()]
    path.write_text("\n".join([json.dumps({**json.loads(first), field: value}), *others]))
    if name == "env.json":
        with pytest.raises(ValueError, match=words):
            seen(tmp_path)
    assert_stops(tmp_path, f"{RUN}.*: .*({words})")


@pytest.mark.parametrize("gone", [f"{RUN}/metrics.jsonl", "rounds/timed-0001.json"])
def test_a_round_that_is_gone_is_named(recorded: tuple[Path, Seen], tmp_path: Path, gone: str):
    """And no ratio is taken over the others."""
    shutil.copytree(recorded[0], tmp_path, dirs_exist_ok=True)
    (folder_in(tmp_path) / gone).unlink()
    lines = f"{RUN}/metrics.jsonl: not readable .No such file"
    assert_stops(
        tmp_path, lines if "metrics" in gone else f"{BASE}: 2 rounds of it .* rounds/ has 1"
    )


def test_an_experiment_s_new_version_is_measured_beside_the_old_one(
    recorded: tuple[Path, Seen], tmp_path: Path
):
    shutil.copytree(recorded[0], tmp_path, dirs_exist_ok=True)
    assert measure(tmp_path, Crew(), SWEEP.model_copy(update={"version": 2})) == 0
    after = seen(tmp_path)
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


def test_every_verb_says_the_same_line(
    recorded: tuple[Path, Seen], tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    shutil.copytree(recorded[0], tmp_path, dirs_exist_ok=True)
    path = folder_in(tmp_path) / RUN / "metrics.jsonl"
    path.write_text("{")
    plots = ["--plots", str(tmp_path / "plots")]
    for verb in (["report", *plots], ["results"], ["pack", "--file", str(tmp_path / "x.zip")]):
        assert main([*verb, "--results", str(tmp_path)]) == 2
        told = capfd.readouterr().err.splitlines()
        assert len(told) == 1
        assert told[0].startswith(f"error: {path}: timed-0001, timed-0002 cannot be read (line 1, ")
