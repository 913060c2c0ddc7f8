"""A prediction counts only if it was not changed afterwards."""

import hashlib
from pathlib import Path

HOME = Path(__file__).parent.parent / "predictions"
# File -> its sha256. A new file gets a new line; no line is ever changed.
FROZEN = {
    "2026-11-22-h100.json": "af091c0c268d135490bd3a5887f67fc9238b37b4ecd6fc32becd114aea0919cc",
    "2026-11-25-vtrain.json": "65c2a0536d9273a2057e2ed63c99cd2918071ed18e693c6a0f8449477aa91e6a",
    "2026-11-26-layers.json": "860c3e9940b15cdf696ac3927e31be8c4918fb743bd556972db100e1187a0a0e",
    "2026-11-26-vtrain.json": "70f0369bd4d51888a4e7597c51e37ef1f47e9835c7c24645ffd16931d2d9c8f6",
    "2026-11-29-vtrain.json": "409ef74193da6f6a0e2da235b6dce303ee89c23b0b3b6d432b1f3de471380702",
    "2026-11-29-vtrain-products.json": (
        "463a3b6f53748c505ba89e3b1b44bb9ad4450d626392c346dbb948110db19577"
    ),
}


def test_no_dated_file_was_changed_added_or_removed():
    files = {path.name: path.read_bytes() for path in HOME.glob("*.json")}
    assert {name: hashlib.sha256(content).hexdigest() for name, content in files.items()} == FROZEN
