"""Methods by name: each stands for fields of a run, and a run with these has that name."""

from typing import Any

import pytest

from repro.gpipe import LinkSpeed
from repro.harness.spec import RunSpec
from repro.methods.named import ACCEPTS, METHODS, fields_of, name_of

FIELDS = ("library", "schedule", "K", "D", "tensor_parallel", "zero")


def run_of(**fields: Any) -> RunSpec:
    return RunSpec(model="transformer", M=4, N=64, **fields)


@pytest.mark.parametrize("name", METHODS)
def test_a_run_with_the_fields_of_a_method_has_its_name(name):
    fields = fields_of(name, 4)
    more: dict[str, Any] = {"trace": "library" not in fields}
    if name == "zero-bubble":
        more |= {"fidelity": "simulated", "profile": "v100"}
    run = run_of(**more | fields)
    assert name_of(**{field: getattr(run, field) for field in FIELDS}) == name
    if name not in ("single", "zero-bubble"):  # one device; simulated by one process
        assert run.devices == 4


@pytest.mark.parametrize(
    ("name", "devices", "text"),
    [
        ("gpip", 2, r"^method='gpip': choose one of single, .*; did you mean 'gpipe'\?$"),
        ("gpipe-x-data", 5, r"^method = 'gpipe-x-data': devices = 5 .* even numbers from 4$"),
        ("tensor", 1, r"^method = 'tensor': devices = 1: .* over 2 or more; try 2$"),
    ],
)
def test_a_method_that_cannot_use_the_devices_is_one_line(name, devices, text):
    with pytest.raises(ValueError, match=text):
        fields_of(name, devices)


@pytest.mark.parametrize("library", ACCEPTS)
def test_a_spec_has_only_what_its_library_accepts(library):
    """The first allowed value of each field makes a run, another value makes none."""
    accepted = ACCEPTS[library]
    fields: dict[str, Any] = {"library": library, "K": 2}
    fields |= {field: allowed[0] for field, allowed in accepted.items()}
    if library == "tensor":
        fields["tensor_parallel"] = 2
    if library == "torch-interleaved":
        fields["stages_per_rank"] = 2
    run_of(**fields)
    others: dict[str, Any] = {"D": 2, "trace": True, "transport": "gloo"}
    others |= {"checkpoint": "except_last", "link": LinkSpeed(0.001)}
    for field in others.keys() & accepted.keys():
        with pytest.raises(ValueError, match=f"{field} = "):
            run_of(**fields | {field: others[field]})
