"""Methods by name: each stands for fields of a run, and a run with these has that name."""

from typing import Any

import pytest

from repro.gpipe import LinkSpeed
from repro.harness.spec import RunSpec
from repro.methods.named import ACCEPTS, METHODS, fields_of, name_of

FIELDS = ("library", "schedule", "K", "D", "tensor_parallel", "zero")


def run_of(name, devices):
    """A run by a method; only its own fields are not the default."""
    fields = fields_of(name, devices)
    modelled = {"fidelity": "simulated", "profile": "v100"} if name == "zero-bubble" else {}
    traced: dict[str, Any] = {"trace": "library" not in fields}
    if fields.get("library") == "pipedream":
        traced["checkpoint"] = "never"
    return RunSpec(model="transformer", M=4, N=64, **{**traced, **modelled, **fields})


@pytest.mark.parametrize("devices", [4, 8])
@pytest.mark.parametrize("name", METHODS)
def test_a_run_with_the_fields_of_a_method_has_its_name(name, devices):
    run = run_of(name, devices)
    assert name_of(**{field: getattr(run, field) for field in FIELDS}) == name
    if name not in ("single", "zero-bubble"):  # one device; simulated by one process
        assert run.devices == devices


@pytest.mark.parametrize(
    ("name", "devices", "text"),
    [
        ("gpip", 2, r"^method='gpip': choose one of single, .*; did you mean 'gpipe'\?$"),
        ("gpipe-x-data", 5, r"^method = 'gpipe-x-data': devices = 5 .* even numbers from 4$"),
        ("gpipe-x-tensor", 2, r"^method = 'gpipe-x-tensor': devices = 2 .* from 4$"),
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
    fields: dict[str, Any] = {field: allowed[0] for field, allowed in accepted.items()}
    fields["library"] = library
    others: dict[str, Any] = {
        "D": 2,
        "trace": True,
        "transport": "gloo",
        "checkpoint": "except_last",
    }
    others["link"] = LinkSpeed(0.001)
    if library == "tensor":
        fields["tensor_parallel"] = 2
    if library == "torch-interleaved":
        fields["stages_per_rank"] = 2
    RunSpec(model="transformer", M=4, N=64, **{"K": 2, **fields})
    for field, other in others.items():
        if field in accepted:
            with pytest.raises(ValueError, match=f"{field} = "):
                RunSpec(model="transformer", M=4, N=64, **{"K": 2, **fields, field: other})
