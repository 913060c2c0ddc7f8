"""A prediction counts only if it was not changed afterwards."""

import hashlib
import json
from pathlib import Path

import pytest

from predictions.vtrain import Iteration, Megatron
from repro.costs.device import load

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


def test_the_profile_a100_gives_the_predictions_of_its_file():
    """Two stages on one node; and T=8, D=32, K=2 on 64 nodes."""
    found = json.loads((HOME / "2026-11-29-vtrain-products.json").read_text("utf-8"))
    megatron = Megatron(load("a100"))
    first = Iteration(16, 8, 1024, 16, 24, 1024, T=1, D=1, K=2, step_s=0.372)
    large = Iteration(1536, 8, 8192, 64, 48, 2048, T=8, D=32, K=2, step_s=15.21)
    assert megatron.step_s(first) == pytest.approx(found["single_s"][0], rel=1e-5)
    assert megatron.step_s(large) == pytest.approx(found["multi_s"][27], rel=1e-5)
