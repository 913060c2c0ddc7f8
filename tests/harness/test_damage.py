"""Every recorded file, damaged in every way: one line names it, and nothing is written over."""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shown import BASE, RUN, Seen, again, assert_stops, folder_in, held, seen

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
    "another kind": lambda _: b"{}\n",
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


@pytest.mark.parametrize("damage", [*DAMAGE, "a pipe"])
@pytest.mark.parametrize("name", FILES)
@pytest.mark.timeout(60)
@pytest.mark.filterwarnings("ignore:given up")
def test_a_damaged_file_stops_all_until_it_is_moved_away(
    recorded: tuple[Path, Seen], tmp_path: Path, name: str, damage: str
):
    source, whole = recorded
    results = tmp_path / "results"
    shutil.copytree(source, results)
    path = folder_in(results) / name
    data = path.read_bytes()
    path.unlink()
    if damage in DAMAGE:
        path.write_bytes(DAMAGE[damage](data))
    else:
        os.mkfifo(path)
    if name.endswith(".parquet"):  # of the newest round, which every round replaces
        with pytest.raises(ValueError, match=re.escape(str(path))):
            seen(results)
    else:
        assert_stops(results, re.escape(str(path)))
    path.rename(tmp_path / "kept")
    again(results, force=True)
    after = seen(results)
    assert (after.rows, after.timelines) == (whole.rows, whole.timelines)


def test_force_gives_up_what_cannot_be_read_and_says_so(
    recorded: tuple[Path, Seen], tmp_path: Path
):
    source, whole = recorded
    shutil.copytree(source, tmp_path, dirs_exist_ok=True)
    (folder_in(tmp_path) / RUN / "metrics.jsonl").write_bytes(b"\xff{")
    with pytest.warns(UserWarning, match=f"given up, as --force says: .*{RUN}/metrics.jsonl: "):
        again(tmp_path, force=True)
    assert seen(tmp_path).rows == whole.rows


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
        if path.suffix == ".parquet" and way == "value":
            way = "bit"
        path.write_bytes(data.draw(damaged(path.read_bytes(), way, path.suffix), label="damaged"))
        before = held(results)
        told = ""
        try:
            assert seen(results).behind(whole)
            again(results)
        except ValueError as error:
            told = str(error)
        assert not told or (told.startswith(str(folder_in(results))) and held(results) == before)


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
