"""Device profiles: the built-in ones, and one line for a mistake in a file."""

import json
import math
from pathlib import Path

import pytest

from repro.costs.device import Amount, Rate, load, names


@pytest.mark.parametrize("name", names())
def test_every_figure_of_a_built_in_profile_has_its_source(name: str, tmp_path: Path):
    device = load(name)
    assert device.name == name
    for key, number in device:
        if key not in ("name", "title", "precision", "date"):
            assert len(number.source) > 10, key
            assert number.basis in ("sourced", "fraction assumed", "assumption")
    # What holds of every accelerator: it multiplies faster than it does anything else, and its
    # memory beats its link.
    assert device.matmul_flops.value > device.other_flops.value
    assert device.bytes_per_second.value > device.link.bytes_per_second
    assert 2**33 <= device.memory.value < 2**38
    device.save(tmp_path / "mine.json")
    assert load(tmp_path / "mine.json") == device


def test_a_core_is_half_a_chip_and_host_staged_messages_cross_the_bus_twice():
    assert load("tpu-v3").matmul_flops.peak == 123e12 / 2
    assert load("tpu-v2").memory.value == 8 * 2**30
    to_host, to_device = 12.89e9, 12.15e9  # measured, see its source
    twice = 1 / (1 / to_host + 1 / to_device)
    assert load("p100-pcie").link.bytes_per_second == pytest.approx(twice, rel=0.01)


def test_the_basis_of_a_figure_stands_in_its_sources():
    def basis(source: str, attainable_source: str) -> str:
        rate = Rate(peak=1e12, attainable=0.5, source=source, attainable_source=attainable_source)
        return rate.basis

    assert basis("a data sheet", "somebody measured") == "sourced"
    assert basis("a data sheet", "assumption: half") == "fraction assumed"
    assert basis("assumption: as another", "somebody measured") == "assumption"
    assert basis("a table, not looked up", "assumption: half") == "not looked up"
    assert Amount(value=1e-6, source="a data sheet").basis == "sourced"


def test_an_unknown_name_has_a_near_one():
    with pytest.raises(ValueError, match=r"^device='tpu-v4': allowed are h100, .*'tpu-v\d'\?$"):
        load("tpu-v4")


@pytest.mark.parametrize(
    ("place", "value", "text"),
    [
        (("matmul_flop",), 1, r"no field 'matmul_flop'.*did you mean 'matmul_flops'\?"),
        (("memory", "unit"), "GB", r"no field 'memory\.unit' .*allowed are source, value"),
        (("matmul_flops", "source"), "", r"matmul_flops\.source = '': .*one line"),
        (("matmul_flops", "attainable"), 1.2, r"attainable = 1\.2: .*less than or equal"),
        (("matmul_flops", "peak"), "fast", r"matmul_flops\.peak = 'fast': .*number"),
        (("launch_s", "value"), math.nan, r"nan"),
        (("matmul_flops", "peak"), 1e300, r"matmul_flops: 1e\+300 .*1 to 1e\+19; correct it"),
        (("link_overlap", "value"), 1, r"link_overlap\.value = 1: .*bool"),
        (("launch_s",), 3, r"launch_s holds 3: allowed is an object"),
    ],
)
def test_a_mistake_in_a_file_is_one_line(place: tuple, value: object, text: str, tmp_path: Path):
    plain = load("v100").model_dump()
    *outer, last = place
    (plain[outer[0]] if outer else plain)[last] = value
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(plain))
    with pytest.raises(ValueError, match=rf"mine\.json.*{text}") as caught:
        load(path)
    assert "\n" not in str(caught.value)
