"""The experiment `advise` on made-up rounds: known layer times, and steps a known part off."""

from pathlib import Path
from typing import Any

import pytest
from recorded import fill_with

from experiments.advise import report
from experiments.advise.runs import PLANS, N, experiment
from repro.harness.job import Measured
from repro.harness.results import Results, load
from repro.harness.schema import round_record
from repro.harness.spec import RunSpec
from repro.report.table import Table

LAYERS = 12
COMMON = {"setup_s": 0.1, "unit": "x/s", "labels": {}}
BANDWIDTH = 1e10
# Of the plan that is predicted to be the fastest: its step over what is predicted, a round each.
SLOWER = (1.10, 1.02, 1.20, 1.05, 1.15)


def tables(factor: float) -> dict[str, Any]:
    """Seconds of 12 layers: proportional to the examples, so that M costs nothing by itself."""
    parts = (("forward", 1), ("recompute", 1), ("backward", 2))
    return {kind: [[1e-4 * factor * part * n] * LAYERS for n in (4, 64)] for kind, part in parts}


CALIBRATION = {
    **tables(1.0),
    "alone": tables(1.0),
    "sizes": [4, 64],
    "update": [0.0] * LAYERS,
    "activations": [0.0] * (LAYERS - 1),
    "gradients": [0.0] * (LAYERS - 1),
    "link": {"latency": 0.0, "bytes_per_second": BANDWIDTH, "overlap": True},
    "parameters": [1e6] * LAYERS,
}
ALL = 12 * 3e-4 * N["laptop"]  # seconds of F and B of the whole mini-batch


def ideal(spec: RunSpec) -> float:
    """What is to be predicted, by hand."""
    work = ALL * (4 / 3 if spec.checkpoint == "always" else 1)
    if spec.D == 2:
        return work / 2 + 12e6 / BANDWIDTH  # D = 2: the ring sends as many bytes as there are
    if spec.K == 1:
        return work
    return work / 2 * (spec.M + 1) / spec.M if spec.schedule != "naive" else work


def recorded(path: Path, rounds: int = 5) -> Results:
    plan = experiment("laptop")
    balance = {1: [LAYERS], 2: [6, 6], 4: [3, 3, 3, 3]}

    def made(spec: RunSpec, number: int) -> Measured | None:
        if spec.task == "calibrate":
            return Measured(
                round_record(
                    {"calibration": CALIBRATION, "balance": [LAYERS], "task": "calibrate", **COMMON}
                )
            )
        seconds = ideal(spec)
        if (spec.D, spec.M, spec.checkpoint) == (2, 1, "never"):
            seconds *= SLOWER[number]
        none = {"bubble_idle_over_total": [None], "bubble_idle_over_work": [None]}
        steps = {"step_s": [seconds], "loss": [1.0], "breakdown": {}, "peak_bytes": None}
        return Measured(
            round_record({**steps, **none, "balance": balance[spec.total_stages], **COMMON})
        )

    fill_with(path, plan, made, rounds)
    return load(path)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return recorded(tmp_path_factory.mktemp("results"))


def rows(table: Table) -> list[dict[str, str]]:
    """Each line: name of the column, with its group, -> text."""

    def name_of(column: str | tuple[str, ...]) -> str:
        return column if isinstance(column, str) else " ".join(filter(None, column))

    lines = table.shown.to_dict("records")
    return [{name_of(column): text for column, text in line.items()} for line in lines]


def test_steps_are_predicted_as_by_hand(results: Results):
    for plan in report.judged_plans(results):
        spec = plan.run.spec
        if spec.stages_per_rank is not None:
            # Half the bubble: it fills and drains with half stages.
            assert ALL / 2 < plan.predicted_s < ideal(spec)
            continue
        simple = spec.checkpoint == "never" or (spec.K == 1 and spec.checkpoint == "always")
        if simple:
            assert plan.predicted_s == pytest.approx(ideal(spec)), spec


def test_plans_are_ranked_by_both(results: Results):
    plans, _ = report.tables(results)
    lines = rows(plans)
    assert len(lines) == len(PLANS) >= 12
    ranks = [int(line["rank predicted"]) for line in lines]
    assert ranks == sorted(ranks)
    assert (lines[0]["D"], lines[0]["M"], lines[0]["recomputed"]) == ("2", "1", "never")
    # 1 / 1.1 - 1 is the median error
    assert lines[0]["error (%) predicted"].startswith("-9.1 [")
    assert int(lines[0]["rank measured"]) > 1


def test_the_advised_plan_is_held_against_the_fastest(results: Results):
    _, verdict = report.tables(results)
    (line,) = rows(verdict)
    assert line["plans"] == str(len(PLANS))
    assert line["advised"] == "data, K=1, D=2, M=1, recomputed never"
    assert line["fastest measured"] == "data, K=1, D=2, M=4, recomputed never"
    assert line["advised over fastest"].startswith("1.10 [1.02, ")
    assert line["goal"] == "at most 1.05: missed by 0.05"


def test_before_it_is_measured(tmp_path: Path):
    fill_with(tmp_path, experiment("laptop"), lambda _spec, _round: None)
    plans, verdict = report.tables(load(tmp_path))
    assert {line["rounds"] for line in rows(plans)} == {"planned"}
    assert verdict.missing
    assert report.tables(Results([], [], {})) == []
