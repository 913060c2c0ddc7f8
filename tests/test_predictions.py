"""A prediction counts only if it was not changed afterwards."""

import hashlib
import json
from pathlib import Path
from statistics import median

import pytest

from predictions.vtrain import step_s
from repro.costs.device import load
from repro.paper.numbers import vtrain

HOME = Path(__file__).parent.parent / "predictions"
# File -> its sha256. A new file gets a new line; no line is ever changed.
FROZEN = {
    "2026-11-22-h100.json": "af091c0c268d135490bd3a5887f67fc9238b37b4ecd6fc32becd114aea0919cc",
    "2026-11-25-vtrain.json": "65c2a0536d9273a2057e2ed63c99cd2918071ed18e693c6a0f8449477aa91e6a",
    "2026-11-26-layers.json": "860c3e9940b15cdf696ac3927e31be8c4918fb743bd556972db100e1187a0a0e",
    "2026-11-26-vtrain.json": "70f0369bd4d51888a4e7597c51e37ef1f47e9835c7c24645ffd16931d2d9c8f6",
}


def test_no_dated_file_was_changed_added_or_removed():
    files = {path.name: path.read_bytes() for path in HOME.glob("*.json")}
    assert {name: hashlib.sha256(content).hexdigest() for name, content in files.items()} == FROZEN


def test_the_iterations_that_were_not_fitted_are_off_as_the_readme_says():
    predicted = json.loads(max(HOME.glob("*-vtrain.json")).read_text("utf-8"))
    text = (HOME / "README.md").read_text("utf-8")
    ways = {"step_s": "{:.1f} % off in the median", "roofline_s": "models: {:.1f} and"}
    for way, words in ways.items():
        errors = [
            abs(seconds / row.step_s - 1)
            for row, seconds in zip(vtrain(), predicted[way], strict=True)
            if (row.hidden, row.pipeline) != (1024, 1)
        ]
        assert len(errors) == 1080
        assert words.format(100 * median(errors)) in text


def test_the_predicted_iterations_are_those_of_the_profile():
    newest = max(HOME.glob("*-vtrain.json"))
    predicted = json.loads(newest.read_text("utf-8"))
    for row, seconds in list(zip(vtrain(), predicted["step_s"], strict=True))[::160]:
        assert step_s(row, load("a100")) == pytest.approx(seconds, rel=1e-5)
