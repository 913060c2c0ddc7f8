"""Methods by name: each stands for fields of a run, and a run with these has that name."""

from pathlib import Path
from typing import Any

import pytest

from repro.harness.spec import RunSpec
from repro.methods.named import METHODS, fields_of

PAGE = (Path(__file__).parents[2] / "docs/cli.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", METHODS)
def test_a_run_with_the_fields_of_a_method_has_its_name(name):
    fields: Any = fields_of(name, 4)
    run = RunSpec(model="transformer", M=4, N=64, trace="library" not in fields, **fields)
    assert run.method == name
    assert f"`{name}`" in PAGE.partition("With `--method`")[2].partition("## ")[0]
    if name != "single":
        assert run.devices == 4
