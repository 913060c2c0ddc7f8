"""A prediction counts only if it was not changed afterwards."""

import hashlib
import json
import re
from pathlib import Path

import pytest

HOME = Path(__file__).parent.parent / "predictions"
# File -> its sha256. A new file gets a new line; no line is ever changed.
FROZEN = {
    "2026-11-22-h100.json": "af091c0c268d135490bd3a5887f67fc9238b37b4ecd6fc32becd114aea0919cc",
}


def test_no_dated_file_was_changed_added_or_removed():
    files = {path.name: path.read_bytes() for path in HOME.glob("*.json")}
    assert {name: hashlib.sha256(content).hexdigest() for name, content in files.items()} == FROZEN


@pytest.mark.parametrize("name", sorted(FROZEN))
def test_a_prediction_can_turn_out_wrong(name):
    content = json.loads((HOME / name).read_text(encoding="utf-8"))
    assert name.startswith(content["date"])
    assert re.fullmatch(r"[0-9a-f]{40}", content["commit"])
    assert set(content["tested_by"]) == set(content["links"])
    cells = {(e["model"], e["link"], e["K"], e["M"]) for e in content["predictions"]}
    assert len(cells) == len(content["predictions"]) == 2 * 2 * 4 * 3
    for entry in content["predictions"]:
        assert entry["fits"] == (entry["peak_bytes"] <= 80e9)
        is_base = (entry["K"], entry["M"]) == (2, 1)
        assert (entry["over_K2_M1"] is None) == is_base
        for bar in filter(None, (entry["examples_per_s"], entry["over_K2_M1"])):
            assert 0 < bar["lowest"] < bar["low"] < bar["value"] < bar["high"] < bar["highest"]
