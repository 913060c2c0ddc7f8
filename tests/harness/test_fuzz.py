"""Any bytes from outside give a valid object or one line; so does a damaged record.

`REPRO_FUZZ=20000` tries so many inputs for each test instead of a fixed few.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crew import MACHINE, spec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from repro.harness.catalog import replay
from repro.harness.outside import read
from repro.harness.spec import Experiment, RunSpec
from repro.io.untrusted import from_json

MANY = int(os.environ.get("REPRO_FUZZ", "0"))
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
fuzz = settings(
    max_examples=MANY or 80,
    derandomize=not MANY,
    deadline=None,
    suppress_health_check=SLOW,
    database=None,
)
ODD = st.sampled_from(
    [
        "1.5",
        "3",
        True,
        1.5,
        2,
        {},
        [],
        2**63,
        10**30,
        -1,
        0,
        1e308,
        5e-324,
        1e999,
        float("nan"),
        "",
        "\ud800",
        "\0",
        "~",
        "import:os:abort",
    ]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | ODD,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
SPEC = spec(2, 4, balance=(1, 3)).model_dump(mode="json")


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """The file with some of its bytes replaced, taken out or put in, or its end cut off."""
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(whole)))
        gone = draw(st.sampled_from([0, 0, 1, 1, 2, 8, len(whole)]))
        whole = whole[:start] + draw(st.binary(max_size=6)) + whole[start + gone :]
    return whole


@st.composite
def changed(draw: st.DrawFn, valid: Any) -> Any:
    """The value with a part of it, however deep, replaced by another, taken out, or given a
    neighbour."""
    if not isinstance(valid, dict | list) or not valid or draw(st.integers(0, 7)) == 0:
        return draw(ODD | VALUES)
    keys = list(valid) if isinstance(valid, dict) else list(range(len(valid)))
    chosen = draw(st.sampled_from(keys))
    copy = valid.copy()
    match draw(st.sampled_from(["in", "in", "out", "more"])):
        case "in":
            copy[chosen] = draw(changed(copy[chosen]))
        case "out":
            copy.pop(chosen)
        case _ if isinstance(copy, dict):
            copy[draw(st.text())] = draw(VALUES)
        case _:
            copy.append(draw(VALUES))
    return copy


def texts(valid: Any) -> st.SearchStrategy[bytes]:
    """Bytes of every sort for a JSON file that is to hold something like `valid`."""
    as_json = (changed(valid) | VALUES).map(lambda value: json.dumps(value).encode())
    return as_json | damaged(json.dumps(valid).encode()) | st.binary()


def one_line(call: Callable[[], Any]) -> Any:
    """What it returns, or None after a ValueError of one line."""
    try:
        return call()
    except ValueError as error:
        told = str(error)
    assert told
    assert "\n" not in told
    assert len(told) < 2000
    return None


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("outside")


@given(data=st.data())
@fuzz
def test_any_bytes_are_a_spec_or_one_line(place: Path, data: st.DataObject):
    path = place / "spec.json"
    path.write_bytes(data.draw(texts(SPEC)))
    found = one_line(lambda: read(path, RunSpec))
    if found is not None:
        again = RunSpec(**json.loads(found.model_dump_json()))
        assert again == found
        assert again.run_id(1, MACHINE.identity) == found.run_id(1, MACHINE.identity)
        assert isinstance(one_line(lambda: replay(found, "x").build("smoke")), Experiment | None)


@given(st.text() | damaged(b'{"a": [1, {"b": "c"}]}').map(lambda raw: raw.decode("latin-1")))
@fuzz
def test_any_text_is_a_plain_value_or_one_line(text: str):
    value = one_line(lambda: from_json(text))
    assert from_json(json.dumps(value)) == value
