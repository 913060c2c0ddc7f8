"""Table 1 measured on one GPU, from made-up records of an H200; and what a reading explains."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from recorded import fill_with

from experiments.table1 import gpu
from experiments.table1.accountings import READINGS, favoured_reading
from experiments.table1.fits import all_fits
from experiments.table1.runs import experiment
from repro.harness.job import Measured
from repro.harness.machine import TF32, Machine
from repro.harness.results import load
from repro.harness.schema import round_record
from repro.harness.spec import RunSpec
from repro.report.table import Table

H200 = Machine("cuda", "NVIDIA H200", 1, "gloo", "2.15.0", TF32)


def fit_record(fits: bool, largest: int) -> Any:
    """Printed sizes that train or not, and a search that ended at so many parameters."""

    def made(spec: RunSpec, _round: int) -> Measured:
        is_printed = "D" in spec.model_args or (spec.model == "transformer" and spec.model_args)
        stages = [{"at": "B0", "total": 10**9, "parameters": 4, "optimizer": 8}] * spec.K
        args = {"L": 1} | ({"D": 1} if spec.model == "amoebanet-d" else {}) | spec.model_args
        model = {"args": args, "parameters": largest, "fullest": 10**9, "stages": stages}
        model["balance"] = [1] * spec.K
        peaks = [10**9] * spec.K
        tried = {
            "args": args,
            "parameters": largest,
            "status": "done" if fits else "oom",
            "reason": "" if fits else "stage 1: CUDA out of memory",
            "peak_bytes": peaks if fits else None,
            "counted_bytes": [10**9] * spec.K,
            "allocator_bytes": None,
        }
        ends = (model, None) if fits or not is_printed else (None, model)
        fit = {"largest": ends[0], "next": ends[1], "counted": model, "tried": [tried]}
        common = {"balance": [1] * spec.K, "setup_s": 0.1, "unit": "x", "labels": {}}
        return Measured(round_record({"task": "fit", "fit": fit, "peak_bytes": peaks, **common}))

    return made


def largest_of(path: Path, made: Any) -> Table:
    fill_with(path, experiment("gpu"), made, place=(H200, "gpu"))
    results = load(path)
    return gpu.largest(results, all_fits(results))


@pytest.mark.parametrize(
    ("model", "fits", "largest", "verdict"),
    [
        ("AmoebaNet-D", True, 320e6, "reproduced with what is inferred"),
        ("AmoebaNet-D", True, 400e6, "consistent: trains, but larger ones do too"),
        ("AmoebaNet-D", False, 320e6, "not reproduced: runs out of memory"),
        ("Transformer", True, 790e6, "fitted: the largest that trains"),
    ],
)
def test_the_verdict_follows_from_what_trained(tmp_path, model, fits, largest, verdict):
    table = largest_of(tmp_path, fit_record(fits, int(largest)))
    pipeline_1 = {"model": model, "column": "Pipeline-1"}
    assert table.text("verdict", **pipeline_1) == verdict
    fate = table.text("printed size measured", **pipeline_1)
    assert fate == ("trains" if fits else "runs out: stage 1")


@pytest.mark.parametrize(
    ("off", "text"),
    [
        ((0.2, -0.4, 0.3, -0.11), "No reading is within 10% of every printed cell of AmoebaNet-D."),
        ((0.01, -0.4, 0.3, -0.5), "one slot, M=16 is favoured by its median difference of 1.0%."),
        ((0.01, -0.4, 0.3, -0.2), "M is not identified, since the nearest is M=16 with one slot"),
        ((0.01,), "Not every reading has been counted."),
    ],
)
def test_a_favoured_reading_follows_its_numbers(off, text):
    lines = [("amoebanet-d", "Pipeline-1", *pair) for pair in zip(READINGS, off, strict=False)]
    columns = ["model", "column", "reading", "difference"]
    assert text in favoured_reading(pd.DataFrame(lines, columns=columns))
