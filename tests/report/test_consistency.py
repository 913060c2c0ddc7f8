"""Reliability on made-up trainings: the rules that were fixed before the first run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from recorded import fill_with

from repro.experiments.consistency import report as consistency
from repro.experiments.consistency.runs import BASE_M, LIMIT, MODELS
from repro.harness import catalog
from repro.harness.request import Result
from repro.harness.results import Results, load
from repro.harness.schema import LearnRound
from repro.harness.spec import RunSpec

EVERY_K = "K = 2, 4 on CPU cores"
RATES = {model["training"].recipe["lr"] for model in MODELS.values()}


def trained(path: Path, replicas: float = 1e-7, nudge: float = 1e-8, **stages: Any) -> Results:
    """The weights of D=2 and of another rate are off by so much, and K=4 has these fields."""

    def made(spec: RunSpec, _round: int) -> Result:
        shift = 0.0
        if spec.D == 2:
            shift = replicas
        elif spec.M != BASE_M:
            shift = 0.5 * (1 + spec.seed / 10)
        elif spec.training and spec.training.recipe["lr"] not in RATES:
            shift = nudge
        fields: dict[str, Any] = {"loss": [2.0, 1.0], "parameters": 1000, "seconds": 1.0}
        fields |= {"examples": 64, "metrics": {"loss": 1.0}, "balance": [1], "setup_s": 0.1}
        fields |= {"unit": "images/s", "labels": {}, "weights": [3.0 + shift, 4.0]}
        fields |= {"digest": "other" if shift else ""} | (stages if spec.K == 4 else {})
        return Result(LearnRound(**fields))

    fill_with(path, catalog.find("consistency").build("laptop"), made)
    return load(path)


@pytest.mark.parametrize(
    ("given", "line", "agreement", "verdict"),
    [
        ({}, ("AmoebaNet-B", EVERY_K), "same bits", "reproduced"),
        ({"digest": "other"}, ("translation", EVERY_K), "rounding", "not reproduced"),
        ({"loss": [2.0, 1.0000001]}, ("translation", EVERY_K), "rounding", "not reproduced"),
        ({"replicas": 4.5 * LIMIT}, ("translation", "D=2 with M=2"), "rounding", "reproduced"),
        ({"replicas": 5.5 * LIMIT}, ("translation", "D=2 with M=2"), "different", "reproduced"),
        ({"nudge": 0.0}, ("translation", EVERY_K), "same bits", "not tested here"),
    ],
)
def test_trainings_are_judged_by_the_rules(tmp_path, given, line, agreement, verdict):
    results = trained(tmp_path, **given)
    (table,) = consistency.tables(results)
    shown = table.shown.to_dict("records")
    lines = {(each["model"].split(",")[0], each["change"]): each for each in shown}
    assert len(lines) == 8
    assert lines[line]["agreement"] == agreement
    assert [claim.verdict for claim in consistency.claims(results)] == [verdict] * 2


def test_a_training_without_a_result_is_no_evidence(tmp_path):
    results = trained(tmp_path)
    runs = [replace(run, status="failed(oom)") if run.K == 4 else run for run in results.runs]
    (_, claim) = consistency.claims(replace(results, runs=runs))
    assert (claim.verdict, claim.doubt) == ("not tested here", "no result for K=4")
