"""The journal: what comes back, what a kill, an edit or a full disk leaves, and how it goes on."""

import getpass
import json
import os
import re
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
from crew import MACHINE, SPEC_SIZES, experiment, metrics, spec
from hypothesis import given, settings
from hypothesis import strategies as st
from shown import RUN, again, assert_stops, folder_in, seen

from repro.cli.main import main
from repro.gpipe import Span, Timeline
from repro.harness.frame import all_runs
from repro.harness.job import Measured
from repro.harness.journal import NAME, Journal, Status
from repro.harness.results import load
from repro.harness.spec import RunSpec

TIMELINE = Timeline((Span("F", 0, 0, 0.5, 1.5, 3),), 2)
WHEN = ("2026-01-01T00:00:00+00:00", "2026-01-01T00:00:01+00:00")


def declared(results: Path, *specs: RunSpec) -> tuple[Journal, list[str]]:
    """A journal with a plan of these runs, and their ids."""
    made = Journal.of(results, MACHINE, "smoke", "tiny")
    made.plan(experiment(*specs), MACHINE, accumulate=False)
    return made, list(made.runs)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """Two rounds of K=1 and K=2 at M=4."""
    made, (one, two) = declared(tmp_path, spec(1, 4), spec(2, 4))
    for seconds in (1.0, 3.0):
        records = {one: metrics(2 * seconds, 1), two: metrics(seconds, 2)}
        measured = {run: Measured(record, TIMELINE) for run, record in records.items()}
        made.commit("timed", measured, MACHINE, WHEN)
    return made


def test_a_row_summarises_the_rounds(journal: Journal, tmp_path: Path):
    results = load(tmp_path)
    (two,) = [run for run in results.runs if run.K == 2]
    row = all_runs(results).set_index("K").loc[2]
    assert row["step_s"] == 2.0  # median over rounds of the median over steps
    assert row["throughput"] == pytest.approx((8 / 1 + 8 / 3) / 2)
    assert row["speedup_vs_k1"] == 2.0
    assert (row["model_args"], row["optimizer"], row["lr"]) == (SPEC_SIZES, "sgd", 0.01)
    assert (row["peak_gib_max"], row["peak_gib_per_stage"]) == (1.0, (1.0, 1.0))
    place = (MACHINE.slug, "smoke", "timed", 2)
    assert tuple(row[["machine", "scale", "group", "rounds"]]) == place
    assert (row["device"], row["unit"], row["balance"]) == ("Test CPU", "examples/s", (2, 2))
    assert results.timeline(two) == TIMELINE


def test_the_reference_inside_is_not_mixed_in_and_a_stray_journal_is_named(
    journal: Journal, tmp_path: Path
):
    target = tmp_path / "reference" / "m" / "smoke" / "tiny"
    target.parent.mkdir(parents=True)
    journal.folder.rename(target)
    assert load(tmp_path).runs == []
    assert len(load(tmp_path / "reference").runs) == 2
    with pytest.raises(ValueError, match=rf"^{target / NAME}: lies in no folder"):
        load(target)


def test_it_says_what_and_where_but_names_no_one(journal: Journal):
    text = journal.path.read_text()
    here = journal.environments[next(iter(journal.runs))]
    assert {"torch", "python", "cpu", "cores", "gpus", "commit", "dirty", "os"} <= here.keys()
    for secret in (str(Path.home()), socket.gethostname(), f'"{getpass.getuser()}"'):
        assert secret not in text
    assert sorted(path.name for path in journal.folder.iterdir()) == [NAME, "timelines"]


def test_plans_and_statuses_are_written_once_and_lines_are_only_appended(tmp_path: Path):
    made, (one, two) = declared(tmp_path, spec(1, 4), spec(2, 4))
    lines = [made.path.read_bytes()]
    made.plan(experiment(spec(1, 4), spec(2, 4)), MACHINE, accumulate=False)
    made.set_status({one: Status("planned")})
    assert made.path.read_bytes() == lines[0]
    made.set_status({one: Status("running"), two: Status("skipped", "why")})
    made.commit("timed", {one: Measured(metrics(1.0, 1), TIMELINE)}, MACHINE, WHEN, done=[one])
    lines.append(made.path.read_bytes())
    replaced = {one: Measured(metrics(2.0, 1))}
    made.commit("timed", replaced, MACHINE, WHEN, done=[one], replacing=[one])
    assert made.path.read_bytes().startswith(lines[1])
    assert lines[1].startswith(lines[0])
    for each in (made, Journal(made.folder)):
        assert [event.round for event in each.rounds] == ["timed-0001", "timed-0002"]
        assert [event.round for event in each.rounds_of(one)] == ["timed-0002"]
        assert (each.status(one), str(each.status(two))) == (("done", ""), "skipped(why)")
        assert each.timeline(one) is None
    assert list((made.folder / "timelines").iterdir()) == [], "what is replaced goes"


def test_cut_off_anywhere_it_has_whole_rounds_and_goes_on(
    recorded: Path, whole: Any, tmp_path: Path
):
    """As a kill leaves it, and as a reader beside a writer may see it."""
    written = (folder_in(recorded) / NAME).read_bytes()
    ends = [match.end() for match in re.finditer(b"\n", written)]
    cuts = {0, 1, *ends, *(end - 1 for end in ends), *range(0, len(written), len(written) // 12)}
    for cut in sorted(cuts):
        results = shutil.copytree(recorded, tmp_path / str(cut))
        path = folder_in(results) / NAME
        path.write_bytes(written[:cut])
        kept = written[: written.rfind(b"\n", 0, cut) + 1]
        assert len(Journal(path.parent).rounds) == kept.count(b'{"event":"round"')
        again(results)
        assert seen(results) == whole
        assert path.read_bytes().startswith(kept)
        assert len(list((path.parent / "timelines").iterdir())) == 2, "no spans of a lost round"


@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_an_edited_line_is_named(
    recorded: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
):
    """A bit anywhere, a line that is gone or a value: nothing is shown or measured."""
    results = shutil.copytree(recorded, tmp_path_factory.mktemp("edited") / "results")
    path = folder_in(results) / NAME
    lines = path.read_bytes().splitlines(keepends=True)
    number = data.draw(st.integers(0, len(lines) - 2), label="line")
    way = data.draw(st.sampled_from(["bit", "gone", "value"]), label="way")
    if way == "gone":
        del lines[number]
    elif way == "value":
        value = json.loads(lines[number])
        changed = {**value, "load": 0.5, "digest": value["digest"]}
        lines[number] = json.dumps(changed).encode() + b"\n"
    else:
        line = bytearray(lines[number])
        line[data.draw(st.integers(0, len(line) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        lines[number] = bytes(line)
    path.write_bytes(b"".join(lines))
    assert_stops(results, rf"^{re.escape(str(path))}: line \d+ is not as it was written")


def test_a_damaged_timeline_is_named_and_measured_again(results: Path, whole: Any):
    path = next((folder_in(results) / "timelines").glob(f"{RUN}-*"))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=rf"^{re.escape(str(path))}: it is not as it was written"):
        seen(results)
    again(results, force=True)
    assert seen(results) == whole


@pytest.mark.parametrize("kind", ["pipe", "link out", "no UTF-8"])
def test_a_journal_that_is_no_file_of_ours_is_one_line(results: Path, kind: str):
    path = folder_in(results) / NAME
    outside = path.rename(results.parent / "outside")
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link out":
        path.symlink_to(outside)
    else:
        path.write_bytes(b"\xff{\n")
    for read in (load, again):
        with pytest.raises(ValueError, match=rf"^{re.escape(str(path))}: "):
            read(results)


def test_what_kills_left_behind_is_removed_by_the_next_run(results: Path, whole: Any):
    timelines = folder_in(results) / "timelines"
    left = [timelines / f"{name}-0123456789ab.json.gz" for name in (RUN, f".{RUN}")]
    for path in left:
        path.write_text("")
    assert seen(results) == whole
    again(results)
    assert not [path for path in left if path.exists()]


def test_every_verb_says_the_same_line(results: Path, capfd: pytest.CaptureFixture[str]):
    path = folder_in(results) / NAME
    path.write_text("{\n" + path.read_text())
    beside = results.parent
    plots = ["--plots", str(beside / "plots")]
    for verb in (["report", *plots], ["results"], ["results", "--pack", str(beside / "x.zip")]):
        assert main([*verb, "--results", str(results)]) == 2
        (line,) = capfd.readouterr().err.splitlines()
        assert line.startswith(f"error: {path}: line 1 is not as it was written")
