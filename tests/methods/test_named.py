"""Methods by name: each stands for fields of a run, and a run with these has that name."""

from typing import Any

import pytest

from repro.harness.spec import RunSpec
from repro.methods.named import METHODS, fields_of


def run_of(**fields: Any) -> RunSpec:
    return RunSpec(model="transformer", M=4, N=64, **fields)


@pytest.mark.parametrize("name", METHODS)
def test_a_run_with_the_fields_of_a_method_has_its_name(name):
    fields = fields_of(name, 4)
    run = run_of(trace="library" not in fields, **fields)
    assert run.method == name
    if name != "single":
        assert run.devices == 4


@pytest.mark.parametrize(
    ("name", "devices", "text"),
    [
        ("gpip", 2, r"^method='gpip': choose one of single, .*; did you mean 'gpipe'\?$"),
        ("gpipe-x-data", 5, r"^method = 'gpipe-x-data': devices = 5 .* even numbers from 4$"),
        ("tensor", 1, r"^method = 'tensor': devices = 1: .* over 2 or more; try --K 2$"),
    ],
)
def test_a_method_that_cannot_use_the_devices_is_one_line(name, devices, text):
    with pytest.raises(ValueError, match=text):
        fields_of(name, devices)
