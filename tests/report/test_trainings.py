"""The exhibits of trainings on made-up records: Tables 4, Figures 1 and 3, and consistency."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from recorded import at_scale, changed_runs, fill_with

from experiments.consistency import report as consistency
from experiments.consistency.runs import BASE_M, LIMIT
from experiments.table4 import report as table4
from experiments.table4.runs import DIGITS, STEPS
from repro.harness import catalog
from repro.harness.job import Measured
from repro.harness.results import Results, load
from repro.harness.schema import LearnRound
from repro.harness.spec import RunSpec
from repro.report.table import Table


def trained(metrics: Mapping[str, float], **fields: object) -> LearnRound:
    """The record of a training with these metrics on its test data."""
    usual = {"loss": [2.0, 1.0], "parameters": 1000, "seconds": 1.0, "examples": 64, "digest": ""}
    more = {"balance": [1], "setup_s": 0.1, "unit": "images/s", "labels": {}}
    return LearnRound(**{**usual, **more, "metrics": dict(metrics), **fields})  # type: ignore[arg-type]


def recorded(path: Path, name: str, made: Callable[[RunSpec], LearnRound]) -> Results:
    plan = catalog.find(name).build("laptop")
    fill_with(path, plan, lambda spec, _round: Measured(made(spec)))
    return load(path)


def by(table: Table, column: str) -> dict[str, dict[str, str]]:
    return {line[column]: line for line in table.shown.to_dict("records")}


def fine_tuned(path: Path, gains: tuple[float, ...]) -> Results:
    """From scratch 0.7, and fine-tuned better by the gain of its task, with noise of the seed."""
    arguments = [task.data_args for task in DIGITS.values()]

    def made(spec: RunSpec) -> LearnRound:
        assert spec.training is not None
        noise = (0.01, -0.01, 0.02, -0.02, 0.0)[spec.seed]
        if spec.training.pretraining is None:
            return trained({"accuracy": (0.5 if spec.steps == STEPS["laptop"][1] else 0.7) + noise})
        gain = gains[arguments.index(spec.training.data_args)] + 1.5 * noise
        return trained({"accuracy": 0.7 + gain, "pretraining accuracy": 0.9 + noise})

    return recorded(path, "table4", made)


@pytest.mark.parametrize(
    ("gains", "verdicts", "positive"),
    [
        ((0.1, 0.1, 0.0, 0.1), ["helps", "helps", "not shown", "helps"], (True, True)),
        ((0.1, 0.1, -0.1, 0.1), ["helps", "helps", "worse", "helps"], (False, False)),
        ((0.1, 0.0, 0.0, 0.1), ["helps", "not shown", "not shown", "helps"], (False, True)),
    ],
)
def test_fine_tuning_must_help_on_three_tasks_and_be_worse_on_none(
    tmp_path, gains, verdicts, positive
):
    results = fine_tuned(tmp_path, gains)
    lines = by(table4.tables(results)[0], "task")
    assert [lines[task]["verdict"] for task in DIGITS] == verdicts
    (ours,) = dict(table4.evidence(results)).values()
    assert (ours.low > 0, ours.high > 0) == positive
    assert "converged" in lines[table4.ALL_TASKS]["verdict"]
    few = Results([run for run in results.runs if run.spec.seed < 4], results.journals)
    lines = by(table4.tables(few)[0], "task")
    assert lines[table4.ALL_TASKS]["verdict"].startswith("not tested here: too few")
    (table,) = table4.tables(changed_runs(results, lambda run: at_scale(run, "smoke")))
    assert "verdict" not in table.shown.columns


def apart(
    path: Path, replicas: float = 1e-7, batch_norm: float = 0.5, **stages: object
) -> dict[tuple[str, str], dict[str, str]]:
    """The lines where the weights of D=2 and M=1 are off by so much, and K=4 has these fields."""

    def made(spec: RunSpec) -> LearnRound:
        shift = 0.0
        if spec.D == 2:
            shift = replicas
        elif spec.M != BASE_M:
            shift = batch_norm if spec.model == "amoebanet-b" else 1e-6
            shift *= 1 + spec.seed / 10
        fields = {"digest": "other"} if shift else stages if spec.K == 4 else {}
        return trained({"loss": 1.0}, **{"weights": [3.0 + shift, 4.0], **fields})

    (table,) = consistency.tables(recorded(path, "consistency", made))
    lines = table.shown.to_dict("records")
    return {(line["model"].split(",")[0], line["change"]): line for line in lines}


@pytest.mark.parametrize(
    ("given", "line", "verdict"),
    [
        ({}, ("AmoebaNet-B", "K=4"), "reproduced"),
        ({"digest": "other"}, ("translation", "K=4"), "not reproduced"),
        ({"loss": [2.0, 1.0000001]}, ("translation", "K=4"), "not reproduced"),
        ({"replicas": 4.5 * LIMIT}, ("translation", "D=2 with M=2"), "within 1e-06"),
        ({"replicas": 5.5 * LIMIT}, ("translation", "D=2 with M=2"), "not within 1e-06"),
        ({}, ("AmoebaNet-B", "M=1, no dropout"), "trend: batch norm makes M matter"),
        ({"batch_norm": 1e-6}, ("AmoebaNet-B", "M=1, no dropout"), "not shown at this size"),
    ],
)
def test_trainings_are_held_to_the_rules(tmp_path, given, line, verdict):
    lines = apart(tmp_path, **given)
    assert len(lines) == 10
    assert lines[line]["verdict"] == verdict
    if verdict == "reproduced":
        assert lines[line]["identical"] == "2 of 2"
        assert lines["AmoebaNet-B", "M=1, no dropout"]["relative distance"].startswith("1.2e-01 [")
