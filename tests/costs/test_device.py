"""Profiles: what the built-in ones hold, and what is said of a file with a mistake."""

import dataclasses
import json
import math
import os
import re
from pathlib import Path
from typing import Any

import pytest

from repro.costs import Device, device
from repro.costs.device import load, names
from repro.costs.sourced_number import AMOUNTS, BASES, RATES, SWITCHES, Figure
from repro.gpipe.partition.layer_profile import LinkSpeed

BUILT_IN = ["h100", "h200", "p100-pcie", "tpu-v2", "tpu-v3", "v100"]


def plain() -> dict:
    """What a file holds, to be spoilt."""
    return json.loads(json.dumps(load("v100").to_json()))


def refused(path: Path) -> str:
    """The one line about a file."""
    with pytest.raises(ValueError, match=path.name) as caught:
        load(path)
    line = str(caught.value)
    assert "\n" not in line
    assert line.startswith(f"{path}: ")
    return line.removeprefix(f"{path}: ")


def test_these_are_built_in():
    assert names() == BUILT_IN


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_figure_has_its_source_and_fractions_are_fractions(name: str):
    found = load(name)
    assert found.name == name
    assert set(found.figures) == {*RATES, *AMOUNTS, *SWITCHES}
    for key, figure in found.figures.items():
        assert len(figure.source) > 10, key
        assert bool(figure.attainable_source) == (key in RATES)
        assert 0 < figure.attainable <= 1
    assert found.matmul_flops == pytest.approx(
        found.figures["matmul_flops"].peak * found.figures["matmul_flops"].attainable
    )
    # What holds of every accelerator: it multiplies faster than it does anything else, and its
    # memory beats its link.
    assert found.matmul_flops > found.other_flops
    assert found.bytes_per_second > found.link.bytes_per_second
    assert 2**33 <= found.memory < 2**38


def test_a_core_is_half_a_chip_and_host_staged_messages_cross_the_bus_twice():
    assert load("tpu-v3").figures["matmul_flops"].peak == 123e12 / 2
    assert load("tpu-v2").memory == 8 * 2**30
    to_host, to_device = 12.89e9, 12.15e9  # measured, see its source
    twice = 1 / (1 / to_host + 1 / to_device)
    assert load("p100-pcie").link.bytes_per_second == pytest.approx(twice, rel=0.01)


@pytest.mark.parametrize(
    "name", ["matmul_flops", "launch_s", "link_latency_s", "link_bytes_per_second"]
)
def test_one_figure_changes_and_no_other(name: str):
    found = load("v100")
    doubled = found.with_figure(name, 2.0)
    assert doubled.figures[name].value == pytest.approx(2 * found.figures[name].value)
    assert {key: figure for key, figure in doubled.figures.items() if key != name} == {
        key: figure for key, figure in found.figures.items() if key != name
    }
    assert doubled.with_figure(name, 0.5) == found == load("v100")


def test_what_a_figure_rests_on_stands_in_its_sources():
    assert Figure(1e12, "a data sheet", 0.5, "somebody measured").basis == "sourced"
    assert Figure(1e12, "a data sheet", 0.5, "assumption: half").basis == "fraction assumed"
    assert Figure(1e12, "assumption: as another", 0.5, "somebody measured").basis == "assumption"
    assert Figure(1e12, "a table, not looked up", 0.5, "assumption: half").basis == "not looked up"
    assert Figure(1e-6, "a data sheet").basis == "sourced"
    for name in BUILT_IN:
        assert {figure.basis for figure in load(name).figures.values()} <= set(BASES) - {
            "not looked up"
        }


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_saved_profile_is_the_same_profile(name: str, tmp_path: Path):
    found = load(name)
    found.save(tmp_path / "mine.json")
    assert load(tmp_path / "mine.json") == found == load(str(tmp_path / "mine.json"))


def test_a_measured_device_keeps_what_was_measured(tmp_path: Path):
    link = LinkSpeed(1e-5, 2e9, overlap=False)
    made = Device.measured(
        "here",
        title="this machine",
        precision="float32",
        date="2026-11-21",
        source="measured here",
        matmul_flops=5e10,
        other_flops=1e9,
        bytes_per_second=1e10,
        launch_s=2e-6,
        memory=2**34,
        link=link,
    )
    made.save(tmp_path / "here.json")
    found = load(tmp_path / "here.json")
    assert found == made
    assert (found.matmul_flops, found.other_flops, found.bytes_per_second) == (5e10, 1e9, 1e10)
    assert (found.launch_s, found.memory, found.link) == (2e-6, 2**34, link)


def test_an_unknown_name_has_a_near_one():
    with pytest.raises(
        ValueError, match=r"^device='tpu-v4': allowed are h100, .*; did you mean 'tpu-v\d'\?$"
    ):
        load("tpu-v4")
    with pytest.raises(ValueError, match=r"^device='abacus': allowed are .*\.json file"):
        load("abacus")


@pytest.mark.parametrize("value", [5, None, 1.5, True, b"v100", ["v100"]])
def test_what_is_no_name_and_no_path_is_one_line(value: Any):
    with pytest.raises(
        ValueError, match=r"^device=.*: allowed are h100, .*\.json file; try 'v100'$"
    ):
        load(value)


def test_a_folder_says_which_file_to_give(tmp_path: Path):
    with pytest.raises(
        ValueError, match=rf"that is a folder, give a file in it, such as {tmp_path}/device\.json$"
    ):
        load(tmp_path)
    load("v100").save(tmp_path / "mine.json")
    with pytest.raises(ValueError, match=rf"such as {tmp_path}/mine\.json$"):
        load(str(tmp_path))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (
            lambda d: d.update(matmul_flop=1),
            r"no field 'matmul_flop'.*did you mean 'matmul_flops'\?",
        ),
        (lambda d: d.pop("memory"), "the field memory is missing; add it"),
        (
            lambda d: d["memory"].update(unit="GB"),
            r"no field 'memory\.unit': allowed are value, source",
        ),
        (lambda d: d["matmul_flops"].pop("source"), r"the field matmul_flops\.source is missing"),
        (
            lambda d: d["matmul_flops"].update(source=""),
            r"matmul_flops\.source = '': allowed is one line",
        ),
        (
            lambda d: d["matmul_flops"].update(attainable_source="a\nb"),
            r"matmul_flops\.attainable_source = 'a\\nb'",
        ),
        (
            lambda d: d["matmul_flops"].update(attainable=1.2),
            r"matmul_flops\.attainable = 1\.2: .*\(0, 1\]",
        ),
        (
            lambda d: d["matmul_flops"].update(attainable=0),
            r"matmul_flops\.attainable = 0\.0: .*\(0, 1\]",
        ),
        (
            lambda d: d["matmul_flops"].update(peak="fast"),
            r"matmul_flops\.peak = 'fast': allowed is a number",
        ),
        (
            lambda d: d["matmul_flops"].update(peak=True),
            r"matmul_flops\.peak = True: allowed is a number",
        ),
        (
            lambda d: d["matmul_flops"].update(peak=math.inf),
            r"matmul_flops\.peak = inf: allowed is a finite number",
        ),
        (lambda d: d["matmul_flops"].update(peak=-1), r"matmul_flops\.peak = -1\.0: .*from 1"),
        (
            lambda d: d["launch_s"].update(value=math.nan),
            r"launch_s\.value = nan: allowed is a finite number from 0",
        ),
        (
            lambda d: d["matmul_flops"].update(peak=1e308),
            r"matmul_flops\.peak = 1e\+308: .* to 1e\+19; correct it",
        ),
        (
            lambda d: d["bytes_per_second"].update(peak=5e-324),
            r"bytes_per_second\.peak = 5e-324: .*from 1 to",
        ),
        (
            lambda d: d["other_flops"].update(attainable=5e-324),
            r"other_flops\.attainable = 5e-324: leaves .* of the peak",
        ),
        (lambda d: d["launch_s"].update(value=1e308), r"launch_s\.value = 1e\+308: .*from 0 to 1;"),
        (lambda d: d["link_latency_s"].update(value=1e5), r"link_latency_s\.value = 1.*e?.*to 60"),
        (lambda d: d["memory"].update(value=1e300), r"memory\.value = 1e\+300"),
        (
            lambda d: d["link_overlap"].update(value=1),
            r"link_overlap\.value = 1\.0: allowed is true or false",
        ),
        (lambda d: d.update(launch_s=3), r"launch_s holds 3\.0: allowed is an object"),
        (lambda d: d.update(title=None), r"title = None: allowed is one line"),
        (lambda d: d.update(title="x" * 3000), r"title = 'x+\.\.\.: allowed is one line"),
    ],
)
def test_a_mistake_in_a_file_is_one_line(spoil, words: str, tmp_path: Path):
    data = plain()
    spoil(data)
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(data))
    assert re.search(words, refused(path))


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "not readable as JSON"),
        (b"[1]", "the file holds [1.0]: allowed is an object"),
        (b"[" * 60000, "too many lists"),
        (b'{"name": 1, "name": 2}', "there twice"),
        (b"9" * 60000, "the file holds inf"),
        (b"\xff{}", "is no UTF-8"),
        (b" " * 70000, "is larger than 65536 bytes"),
    ],
)
def test_whatever_bytes_a_file_holds(raw: bytes, words: str, tmp_path: Path):
    path = tmp_path / "mine.json"
    path.write_bytes(raw)
    assert words in refused(path)


def test_what_is_no_file(tmp_path: Path):
    assert "not readable" in refused(tmp_path / "none.json")
    os.mkfifo(tmp_path / "pipe.json")
    assert "no regular file" in refused(tmp_path / "pipe.json")


def test_a_device_made_in_code_is_checked_too():
    figures = dict(load("v100").figures) | {"memory": Figure(math.inf, "somewhere")}
    with pytest.raises(ValueError, match=r"^memory\.value = inf"):
        dataclasses.replace(load("v100"), figures=figures)
    words: dict[str, Any] = {"peak": "fast", "source": "somewhere"}
    with pytest.raises(ValueError, match=r"^memory\.value = 'fast': allowed is a finite number"):
        dataclasses.replace(load("v100"), figures=figures | {"memory": Figure(**words)})
    assert {load("v100"): 1}[device.load("v100")] == 1


def test_a_changed_figure_stays_in_its_range():
    """Whoever asks what a step depends on has a device that is allowed."""
    v100 = load("v100")
    slow = v100.with_figure("launch_s", 0.6 / v100.launch_s)
    assert slow.with_figure("launch_s", 2.0).launch_s == 1.0
    least = v100.with_figure("matmul_flops", 1e-30)
    assert least.matmul_flops == pytest.approx(1.0)
    assert least.with_figure("matmul_flops", 0.5) == least
