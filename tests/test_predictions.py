"""A prediction counts only if it was not changed afterwards."""

import hashlib
from pathlib import Path

HOME = Path(__file__).parent.parent / "predictions"
# File -> its sha256. A new file gets a new line; no line is ever changed.
FROZEN = {
    "2026-11-22-h100.json": "af091c0c268d135490bd3a5887f67fc9238b37b4ecd6fc32becd114aea0919cc",
}


def test_no_dated_file_was_changed_added_or_removed():
    files = {path.name: path.read_bytes() for path in HOME.glob("*.json")}
    assert {name: hashlib.sha256(content).hexdigest() for name, content in files.items()} == FROZEN
