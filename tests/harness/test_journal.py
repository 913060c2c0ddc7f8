"""The journal: what comes back, what a kill, an edit or a full disk leaves, and how it goes on."""

import gzip
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes import MACHINE, FakeWorkers, experiment, measure, spec
from hypothesis import given, settings
from hypothesis import strategies as st

from repro.harness.frame import all_runs
from repro.harness.journal import NAME, Journal, _digest
from repro.harness.results import load, load_recorded
from repro.io import files, lock

SWEEP = experiment(spec(1, 4), spec(2, 4))
RUN = SWEEP.groups[0].runs[1].run_id(1, MACHINE.identity)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A finished sweep to be damaged; nothing here has to survive a loss of power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files.os, "fsync", lambda _: None)
        results = tmp_path_factory.mktemp("recorded")
        again(results)
        yield results


@pytest.fixture
def results(recorded: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(recorded, tmp_path / "results")


def again(results: Path, **options: Any) -> None:
    assert measure(results, FakeWorkers(), SWEEP, **options) == 0


def seen(results: Path) -> tuple[str, list[Any]]:
    """The rows and timelines of a report but for the rounds' number and commits."""
    found = load(results)
    timelines = [found.timeline(run) for run in found.runs]
    return all_runs(found).drop(columns=["rounds", "commit"]).to_csv(), timelines


def journal_in(results: Path) -> Path:
    return results / MACHINE.slug / "smoke" / "tiny" / NAME


def contents(results: Path) -> dict[Path, bytes]:
    paths = (path for path in results.rglob("*") if path.is_file() and path.name != lock.NAME)
    return {path: path.read_bytes() for path in paths}


def test_the_reference_inside_is_not_mixed_in_and_a_stray_journal_is_named(results: Path):
    target = journal_in(results / "reference").parent
    shutil.move(results / MACHINE.slug, results / "reference" / MACHINE.slug)
    assert load(results).runs == []
    assert len(load(results / "reference").runs) == 2
    with pytest.raises(ValueError, match=rf"^{target / NAME}: lies in no .* {results}/reference, "):
        load(target)
    with pytest.raises(ValueError, match=rf"there; give --results {results}/reference, or"):
        load_recorded(results)


@pytest.mark.parametrize("forced", [False, True])
def test_cut_off_anywhere_it_has_whole_rounds_and_goes_on(
    recorded: Path, tmp_path: Path, forced: bool
):
    """As a kill leaves it, and as a reader beside a writer may see it.

    The rounds before a forced sweep count until its first one is whole.
    """
    finished = len(journal_in(recorded).read_bytes())
    if forced:
        recorded = shutil.copytree(recorded, tmp_path / "forced")
        again(recorded, force=True)
    written = journal_in(recorded).read_bytes()
    ends = [match.end() for match in re.finditer(b"\n", written)]
    cuts = {0, 1, *ends, *(end - 1 for end in ends), *range(0, len(written), len(written) // 12)}
    for cut in sorted(cuts):
        results = shutil.copytree(recorded, tmp_path / str(cut))
        path = journal_in(results)
        path.write_bytes(written[:cut])
        kept = written[: written.rfind(b"\n", 0, cut) + 1]
        assert len(Journal(path.parent).rounds) == kept.count(b'{"event":"round"')
        if cut >= finished:
            assert all_runs(load(results))["rounds"].min() >= 1
        again(results)
        assert seen(results) == seen(recorded)
        assert path.read_bytes().startswith(kept)
        assert len(list((path.parent / "timelines").iterdir())) == 2, "no spans of a lost round"


@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_an_edited_line_is_named(recorded: Path, tmp_path_factory, data: st.DataObject):
    """A bit anywhere, or a line that is gone: nothing is shown or measured, or changed."""
    results = shutil.copytree(recorded, tmp_path_factory.mktemp("edited") / "results")
    path = journal_in(results)
    lines = path.read_bytes().splitlines(keepends=True)
    number = data.draw(st.integers(0, len(lines) - 2), label="line")
    if data.draw(st.booleans(), label="gone"):
        del lines[number]
    else:
        line = bytearray(lines[number])
        line[data.draw(st.integers(0, len(line) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        lines[number] = bytes(line)
    path.write_bytes(b"".join(lines))
    before = contents(results)
    for command in (seen, again):
        with pytest.raises(ValueError, match=r"line \d+ is not as it was written[^\n]*$") as caught:
            command(results)
        assert str(caught.value).startswith(f"{path}: ")
    assert contents(results) == before


Change = Callable[[dict[str, Any]], object]


def rewritten(path: Path, event: str, change: Change) -> None:
    """Change the events of a kind, with digests as if they had been written so."""
    seal, lines = b"", b""
    for line in path.read_bytes().splitlines():
        fields = json.loads(line)
        del fields["digest"]
        if fields["event"] == event:
            change(fields)
        body = json.dumps(fields, separators=(",", ":")).encode()[:-1]
        seal = f',"digest":"{_digest(seal + body)}"}}'.encode()
        lines += body + seal + b"\n"
    path.write_bytes(lines)


WRONG: list[tuple[str, Change, str]] = [
    ("round", lambda e: e["records"][RUN].update(step_s=[0.0]), "step_s"),
    ("round", lambda e: e["records"][RUN].update(step_s=["1"]), "step_s"),
    ("round", lambda e: e.update(round="timed-x"), "round"),
    ("round", lambda e: e.update(round="a lap" + 10**5 * "x"), "a lap"),
    ("environment", lambda e: e.update(count=["2"]), "count"),
    ("round", lambda e: e.update(spans={RUN: "../../x"}), "spans"),
    ("round", lambda e: e.update(event="lap"), "lap"),
    ("round", lambda e: e.update(event="status", status={"a": ["a", "b", "c"]}), "status"),
    ("plan", lambda e: e["specs"].pop(RUN), "model is missing"),
    (
        "plan",
        lambda e: e["specs"][RUN].update(schedule="zb-9"),
        "schedule = 'zb-9'.*another version than .* may have written it",
    ),
]


@pytest.mark.parametrize(("event", "change", "words"), WRONG)
def test_what_means_nothing_to_this_version_is_one_line(
    results: Path, event: str, change: Change, words: str
):
    """Its digests are right, as where a newer version wrote it."""
    path = journal_in(results)
    rewritten(path, event, change)
    line = rf"^{re.escape(str(path))}: [^\n]*{words}[^\n]*$"
    with pytest.raises(ValueError, match=line) as caught:
        seen(results)
    assert len(str(caught.value)) < len(str(path)) + 1000


@pytest.mark.parametrize("wrong", [{"start": ["x"]}, {"stage": [2]}, {"kind": []}])
def test_spans_that_are_none_are_one_line(results: Path, wrong: dict[str, Any]):
    spans = {"kind": ["F"], "stage": [0], "micro_batch": [0], "step": [0], "start": [0.0]}
    packed = gzip.compress(json.dumps(spans | {"end": [1.0]} | wrong).encode())
    journal = Journal(journal_in(results).parent)
    journal._spans[RUN] = _digest(packed)
    journal._file(RUN).write_bytes(packed)
    with pytest.raises(ValueError, match=r"\.json\.gz: [^\n]*; restore it[^\n]*$"):
        journal.timeline(RUN)


def test_a_damaged_timeline_is_named_and_measured_again(results: Path, recorded: Path):
    path = next((journal_in(results).parent / "timelines").glob(f"{RUN}-*"))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=rf"^{re.escape(str(path))}: it is not as it was written"):
        seen(results)
    again(results, force=True)
    assert seen(results) == seen(recorded)
    assert len(list(path.parent.iterdir())) == 2, "what is replaced goes"
