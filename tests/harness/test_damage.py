"""Every recorded file, damaged in every way: left out with a warning that names it, and whole again
after a run."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shown import BASE, RUN, Seen, again, assert_told, assert_whole_again, folder_in, seen

from repro.io import lock

FILES = [
    "experiment.json",
    "rounds/timed-0002.json",
    *(
        f"{RUN}/{name}"
        for name in ("spec.json", "env.json", "status.json", "metrics.jsonl", "timeline.parquet")
    ),
    f"{BASE}/metrics.jsonl",
]
DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "half": lambda data: data[: len(data) // 2],
    "no text": lambda data: b"\xff\xfe" + data,
    "another kind": lambda _: b"{}\n",
    "too deep": lambda _: b"[" * 100_000,
}
VALUES = [
    -1,
    0,
    -0.5,
    1e300,
    10**400,
    float("nan"),
    float("inf"),
    "0.5",
    "\ud800",
    True,
    None,
    [],
    {},
    [-1.0],
    {"K": 2},
]


def test_undamaged_nothing_is_told(recorded: tuple[Path, Seen]):
    _, whole = recorded
    assert whole.warned == []
    assert len(whole.lines) == 4
    assert None not in whole.timelines


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_left_out_and_measured_again(
    recorded: tuple[Path, Seen], tmp_path: Path, name: str, damage: str
):
    source, whole = recorded
    shutil.copytree(source, tmp_path, dirs_exist_ok=True)
    path = folder_in(tmp_path) / name
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    assert_told(seen(tmp_path), path, whole)
    assert_whole_again(tmp_path, whole)


@pytest.mark.parametrize("name", FILES)
def test_a_directory_in_a_file_s_place_stops_a_run_before_it_writes(
    recorded: tuple[Path, Seen], tmp_path: Path, name: str
):
    source, whole = recorded
    shutil.copytree(source, tmp_path, dirs_exist_ok=True)
    path = folder_in(tmp_path) / name
    path.unlink()
    path.mkdir()
    assert_told(seen(tmp_path), path, whole)
    before = held(tmp_path)
    with pytest.raises(OSError, match="Is a directory") as caught:
        again(tmp_path)
    assert caught.value.filename == str(path)
    assert held(tmp_path) == before
    path.rmdir()
    assert_whole_again(tmp_path, whole)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.timeout(60)
def test_a_pipe_in_a_file_s_place_is_not_waited_for(
    recorded: tuple[Path, Seen], tmp_path: Path, name: str
):
    source, whole = recorded
    shutil.copytree(source, tmp_path, dirs_exist_ok=True)
    path = folder_in(tmp_path) / name
    path.unlink()
    os.mkfifo(path)
    assert_told(seen(tmp_path), path, whole)
    with pytest.raises(ValueError, match=f"{path.name} is no regular file; remove it"):
        again(tmp_path)
    path.unlink()
    assert_whole_again(tmp_path, whole)


def held(results: Path) -> dict[Path, bytes]:
    """Every recorded file with its content."""
    return {
        path: path.read_bytes()
        for path in results.rglob("*")
        if path.is_file() and path.name != lock.NAME
    }


@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_no_damage_is_a_crash_or_a_wrong_number(recorded: tuple[Path, Seen], data: st.DataObject):
    """Cut off anywhere, a bit or a value changed anywhere: what is still shown was measured."""
    source, whole = recorded
    with tempfile.TemporaryDirectory() as made:
        results = Path(made)
        shutil.copytree(source, results, dirs_exist_ok=True)
        path = folder_in(results) / data.draw(st.sampled_from(FILES), label="file")
        way = data.draw(st.sampled_from(["cut", "bit", "value"]), label="way")
        if path.suffix == ".parquet":
            way = "cut"
        path.write_bytes(data.draw(damaged(path.read_bytes(), way, path.suffix), label="damaged"))
        assert seen(results).behind(whole)
        assert_whole_again(results, whole)


@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_a_changed_timeline_is_no_crash(recorded: tuple[Path, Seen], data: st.DataObject):
    source, whole = recorded
    with tempfile.TemporaryDirectory() as made:
        results = Path(made)
        shutil.copytree(source, results, dirs_exist_ok=True)
        path = folder_in(results) / RUN / "timeline.parquet"
        path.write_bytes(data.draw(damaged(path.read_bytes(), "bit")))
        after = seen(results)
        assert after.rows == whole.rows
        assert all(
            line.startswith(f"{path} is left out: ") and "--force" in line for line in after.warned
        )


@st.composite
def damaged(draw: st.DrawFn, recorded: bytes, way: str, kind: str = "") -> bytes:
    if way == "value":
        first, *others = recorded.splitlines() if kind == ".jsonl" else [recorded]
        return b"\n".join([json.dumps(changed(draw, json.loads(first))).encode(), *others])
    at = draw(st.integers(0, len(recorded) - 1))
    bit = bytes([recorded[at] ^ 1 << draw(st.integers(0, 7))]) if way == "bit" else b""
    return recorded[:at] + bit + recorded[at + 1 :] * (way == "bit")


def changed(draw: st.DrawFn, value: Any) -> Any:
    """The same with one value somewhere in it replaced."""
    if isinstance(value, dict | list) and value and draw(st.integers(0, 9)):
        copy = dict(value) if isinstance(value, dict) else list(value)
        key = draw(
            st.sampled_from(list(copy) if isinstance(copy, dict) else list(range(len(copy))))
        )
        copy[key] = changed(draw, copy[key])
        return copy
    return draw(st.sampled_from(VALUES))
