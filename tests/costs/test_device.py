"""Device profiles: the built-in ones, and one line for a mistake in a file."""

import json
import math
from pathlib import Path

import pytest

from repro.costs.device import load, names
from repro.costs.links import Links
from repro.gpipe.partition.layer_costs import LinkSpeed


@pytest.mark.parametrize("name", names())
def test_every_figure_of_a_built_in_profile_has_its_source(name: str, tmp_path: Path):
    device = load(name)
    assert device.name == name
    for key, number in (*device, *(device.nodes or ())):
        if key not in ("name", "title", "precision", "date", "nodes") and number is not None:
            assert len(number.source) > 10, key
            assert "not looked up" not in str(number), key
    # What holds of every accelerator: it multiplies faster than it does anything else, and its
    # memory beats its link.
    assert device.matmul_flops.value > device.other_flops.value
    assert device.bytes_per_second.value > device.link.bytes_per_second
    assert 2**33 <= device.memory.value < 2**38
    (tmp_path / "mine.json").write_text(device.model_dump_json())
    assert load(tmp_path / "mine.json") == device


def test_a_core_is_half_a_chip_and_host_staged_messages_cross_the_bus_twice():
    assert load("tpu-v3").matmul_flops.peak == 123e12 / 2
    assert load("tpu-v2").memory.value == 8 * 2**30
    to_host, to_device = 12.89e9, 12.15e9  # measured, see its source
    twice = 1 / (1 / to_host + 1 / to_device)
    assert load("p100-pcie").link.bytes_per_second == pytest.approx(twice, rel=0.01)


@pytest.mark.parametrize(
    ("place", "value", "text"),
    [
        (("matmul_flop",), 1, r"no field 'matmul_flop'.*did you mean 'matmul_flops'\?"),
        (("memory", "unit"), "GB", r"no field 'memory\.unit' .*allowed are source, value"),
        (("launch_s", "value"), math.nan, r"nan"),
        (("matmul_flops", "peak"), 1e300, r"matmul_flops.peak = 1e\+300: must be .* 10{19}"),
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


def test_a_group_that_spans_nodes_takes_the_slower_link_and_sums_in_each_node_first():
    fast, slow = (LinkSpeed(latency=a, bytes_per_second=b) for a, b in ((1.0, 100.0), (3.0, 10.0)))
    links = Links(fast, slow, node=4)
    assert [links.of_group(K) for K in (2, 4, 5)] == [fast, fast, slow]
    assert links.of_group(2, stride=2) == fast
    assert links.of_group(2, stride=4) == slow
    # Eight devices: rings of four for 800 bytes, then of two for a fourth of them.
    assert links.all_reduce_seconds(800, 4) == 6 * (1 + 2)
    assert links.all_reduce_seconds(800, 8) == 6 * (1 + 2) + 2 * (3 + 10)
    # One device of each node, or two.
    assert links.all_reduce_seconds(800, 2, stride=4) == 2 * (3 + 40)
    assert links.all_reduce_seconds(800, 4, stride=2) == 2 * (1 + 4) + 2 * (3 + 20)
    assert Links(fast).of_group(1000) == fast


def test_devices_of_a_node_share_its_link_to_others():
    a100 = load("a100")
    eight, four = a100.links(), a100.links(node=4)
    assert (eight.node, four.node) == (8, 4)
    assert eight.between
    assert four.between
    assert four.between.bytes_per_second == 2 * eight.between.bytes_per_second
    assert load("v100").links().of_group(1000) == load("v100").link
    with pytest.raises(ValueError, match="node=4: the profile v100 has no link between nodes"):
        load("v100").links(node=4)
