"""Methods by name: each stands for fields of a run, and a run with these has that name."""

from typing import Any

import pytest

from repro.harness.spec import RunSpec
from repro.methods.named import METHODS, fields_of


@pytest.mark.parametrize("name", METHODS)
def test_a_run_with_the_fields_of_a_method_has_its_name(name):
    fields: Any = fields_of(name, 4)
    run = RunSpec(model="transformer", M=4, N=64, trace="library" not in fields, **fields)
    assert run.method == name
    if name != "single":
        assert run.devices == 4
