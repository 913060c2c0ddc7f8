"""Reliability on made-up trainings: the rules that were fixed before the first run."""

from pathlib import Path
from typing import Any

import pytest
from recorded import fill_with

from experiments.consistency import report as consistency
from experiments.consistency.runs import BASE_M, LIMIT
from repro.harness import catalog
from repro.harness.job import Measured
from repro.harness.results import Results, load
from repro.harness.schema import LearnRound
from repro.harness.spec import RunSpec


def trained(path: Path, replicas: float = 1e-7, batch_norm: float = 0.5, **stages: Any) -> Results:
    """The weights of D=2 and M=1 are off by so much, and K=4 has these fields."""

    def made(spec: RunSpec, _round: int) -> Measured:
        shift = 0.0
        if spec.D == 2:
            shift = replicas
        elif spec.M != BASE_M:
            shift = batch_norm if spec.model == "amoebanet-b" else 1e-6
            shift *= 1 + spec.seed / 10
        fields: dict[str, Any] = {"loss": [2.0, 1.0], "parameters": 1000, "seconds": 1.0}
        fields |= {"examples": 64, "metrics": {"loss": 1.0}, "balance": [1], "setup_s": 0.1}
        fields |= {"unit": "images/s", "labels": {}, "weights": [3.0 + shift, 4.0]}
        fields |= {"digest": "other" if shift else ""} | (stages if spec.K == 4 else {})
        return Measured(LearnRound(**fields))

    fill_with(path, catalog.find("consistency").build("laptop"), made)
    return load(path)


@pytest.mark.parametrize(
    ("given", "line", "verdict"),
    [
        ({}, ("AmoebaNet-B", "K=4"), "reproduced"),
        ({"digest": "other"}, ("translation", "K=4"), "not reproduced"),
        ({"loss": [2.0, 1.0000001]}, ("translation", "K=4"), "not reproduced"),
        ({"replicas": 4.5 * LIMIT}, ("translation", "D=2 with M=2"), "rounding"),
        ({"replicas": 5.5 * LIMIT}, ("translation", "D=2 with M=2"), "different"),
        ({}, ("AmoebaNet-B", "M=1, no dropout"), "different"),
        ({"batch_norm": 1e-7}, ("AmoebaNet-B", "M=1, no dropout"), "rounding"),
    ],
)
def test_trainings_are_held_to_the_rules(tmp_path, given, line, verdict):
    results = trained(tmp_path, **given)
    (table,) = consistency.tables(results)
    shown = table.shown.to_dict("records")
    lines = {(each["model"].split(",")[0], each["change"]): each for each in shown}
    assert len(lines) == 10
    assert lines[line]["verdict"] == verdict
    if line[1] == "K=4":
        differing = 2 if given else 0
        assert lines[line]["identical"] == f"{2 - differing} of 2"
        assert [claim.verdict for claim in consistency.claims(results)] == [verdict] * 2
        assert [claim.ours[0][0] for claim in consistency.claims(results)] == [differing] * 2
