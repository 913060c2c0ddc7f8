"""Device profiles: the built-in ones, and the error for each mistake in a file."""

import json
import math
import os
import re
from pathlib import Path
from typing import Any

import pytest

from repro.costs import Device
from repro.costs.device import load, names
from repro.costs.sourced_number import LaunchTime, Rate, Switch
from repro.gpipe.partition.layer_costs import LinkSpeed

BUILT_IN = ["h100", "h200", "p100-pcie", "p40", "tpu-v2", "tpu-v3", "v100"]


def plain() -> dict:
    """What a file holds, to be spoilt."""
    return json.loads(json.dumps(load("v100").model_dump()))


def numbers(device: Device) -> dict[str, Any]:
    """The rates, amounts and switches of a device."""
    texts = ("name", "title", "precision", "date")
    return {key: value for key, value in device if key not in texts}


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
    device = load(name)
    assert device.name == name
    for key, number in numbers(device).items():
        assert len(number.source) > 10, key
        if isinstance(number, Rate):
            assert len(number.attainable_source) > 10, key
            assert 0 < number.attainable <= 1
    rate = device.matmul_flops
    assert rate.value == pytest.approx(rate.peak * rate.attainable)
    # What holds of every accelerator: it multiplies faster than it does anything else, and its
    # memory beats its link.
    assert device.matmul_flops.value > device.other_flops.value
    assert device.bytes_per_second.value > device.link.bytes_per_second
    assert 2**33 <= device.memory.value < 2**38


def test_a_core_is_half_a_chip_and_host_staged_messages_cross_the_bus_twice():
    assert load("tpu-v3").matmul_flops.peak == 123e12 / 2
    assert load("tpu-v2").memory.value == 8 * 2**30
    to_host, to_device = 12.89e9, 12.15e9  # measured, see its source
    twice = 1 / (1 / to_host + 1 / to_device)
    assert load("p100-pcie").link.bytes_per_second == pytest.approx(twice, rel=0.01)


@pytest.mark.parametrize(
    "name", ["matmul_flops", "launch_s", "link_latency_s", "link_bytes_per_second"]
)
def test_one_figure_changes_and_no_other(name: str):
    device = load("v100")
    before = numbers(device)
    doubled = device.with_scaled(name, 2.0)
    after = numbers(doubled)
    assert after.pop(name).value == pytest.approx(2 * before.pop(name).value)
    assert after == before
    assert doubled.with_scaled(name, 0.5) == device == load("v100")


def test_what_a_figure_rests_on_stands_in_its_sources():
    def basis(source: str, attainable_source: str) -> str:
        rate = Rate(peak=1e12, attainable=0.5, source=source, attainable_source=attainable_source)
        return rate.basis

    assert basis("a data sheet", "somebody measured") == "sourced"
    assert basis("a data sheet", "assumption: half") == "fraction assumed"
    assert basis("assumption: as another", "somebody measured") == "assumption"
    assert basis("a table, not looked up", "assumption: half") == "not looked up"
    assert LaunchTime(value=1e-6, source="a data sheet").basis == "sourced"
    assert Switch(value=True, source="assumption: as another").basis == "assumption"
    for name in BUILT_IN:
        for number in numbers(load(name)).values():
            assert number.basis in ("sourced", "fraction assumed", "assumption")


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_saved_profile_is_the_same_profile(name: str, tmp_path: Path):
    device = load(name)
    device.save(tmp_path / "mine.json")
    assert load(tmp_path / "mine.json") == device == load(str(tmp_path / "mine.json"))


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
    device = load(tmp_path / "here.json")
    assert device == made
    assert device.matmul_flops.value == 5e10
    assert device.other_flops.value == 1e9
    assert device.bytes_per_second.value == 1e10
    assert (device.launch_s.value, device.memory.value, device.link) == (2e-6, 2**34, link)
    assert (device.tile.value, device.setup_s.value) == (1, 0)


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
    ("spoil", "text"),
    [
        (
            lambda d: d.update(matmul_flop=1),
            r"no field 'matmul_flop'.*did you mean 'matmul_flops'\?",
        ),
        (lambda d: d.pop("memory"), "the field memory is missing; add it"),
        (
            lambda d: d["memory"].update(unit="GB"),
            r"no field 'memory\.unit' .*allowed are value, source",
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
            r"matmul_flops\.attainable = 0: .*\(0, 1\]",
        ),
        (
            lambda d: d["matmul_flops"].update(peak="fast"),
            r"matmul_flops\.peak = 'fast': allowed is a finite number from 1 to 1e\+19; correct it",
        ),
        (
            lambda d: d["matmul_flops"].update(peak=True),
            r"matmul_flops\.peak = True: allowed is a finite number",
        ),
        (
            lambda d: d["matmul_flops"].update(peak=math.inf),
            r"holds inf; allowed are finite numbers",
        ),
        (lambda d: d["matmul_flops"].update(peak=-1), r"matmul_flops\.peak = -1: .*from 1"),
        (
            lambda d: d["launch_s"].update(value=math.nan),
            r"holds nan; allowed are finite numbers",
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
        (lambda d: d["tile"].update(value=0), r"tile\.value = 0: .*from 1 to 4096; correct it"),
        (lambda d: d["tile"].update(value=12.5), r"tile\.value = 12\.5: allowed is a whole number"),
        (lambda d: d["setup_s"].update(value=-1), r"setup_s\.value = -1: .*from 0 to 3600"),
        (
            lambda d: d["link_overlap"].update(value=1),
            r"link_overlap\.value = 1: allowed is true or false",
        ),
        (lambda d: d.update(launch_s=3), r"launch_s holds 3: allowed is an object"),
        (lambda d: d.update(title=None), r"title = None: allowed is one line"),
        (lambda d: d.update(title="x" * 3000), r"title = 'x+\.\.\.: allowed is one line"),
    ],
)
def test_a_mistake_in_a_file_is_one_line(spoil, text: str, tmp_path: Path):
    data = plain()
    spoil(data)
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(data))
    assert re.search(text, refused(path))


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"", "not readable as JSON"),
        (b"[1]", "the file holds [1]: allowed is an object"),
        (b"[" * 60000, "too many lists"),
        (b'{"name": 1, "name": 2}', "there twice"),
        (b"9" * 60000, "more than 64 bits"),
        (b"\xff{}", "is no UTF-8"),
        (b" " * 70000, "is larger than 65536 bytes"),
    ],
)
def test_whatever_bytes_a_file_holds(raw: bytes, text: str, tmp_path: Path):
    path = tmp_path / "mine.json"
    path.write_bytes(raw)
    assert text in refused(path)


def test_what_is_no_file(tmp_path: Path):
    assert "not readable" in refused(tmp_path / "none.json")
    os.mkfifo(tmp_path / "pipe.json")
    assert "no regular file" in refused(tmp_path / "pipe.json")


def test_a_device_made_in_code_is_checked_too():
    for value in (math.inf, "fast"):
        memory = {"value": value, "source": "somewhere"}
        with pytest.raises(ValueError, match=rf"^memory\.value = '?{value}'?: allowed is a finite"):
            Device.of(plain() | {"memory": memory})
    assert {load("v100"): 1}[load("v100")] == 1


def test_a_changed_figure_stays_in_its_range():
    """Whoever asks what a step depends on has a device that is allowed."""
    v100 = load("v100")
    slow = v100.with_scaled("launch_s", 0.6 / v100.launch_s.value)
    assert slow.with_scaled("launch_s", 2.0).launch_s.value == 1.0
    least = v100.with_scaled("matmul_flops", 1e-30)
    assert least.matmul_flops.value == pytest.approx(1.0)
    assert least.with_scaled("matmul_flops", 0.5) == least
