"""The experiment `advise` on made-up rounds: known layer times, and steps a known part off."""

from pathlib import Path

import pytest
from recorded import fill_with

from experiments.advise import report
from experiments.advise.runs import experiment
from repro.harness.job import Measured
from repro.harness.results import load
from repro.harness.schema import round_record
from repro.harness.spec import RunSpec

LAYERS, N = 12, 64
BANDWIDTH = 1e10
ALL = 12 * 3e-4 * N  # seconds of F and B of the whole mini-batch
# Of the plan that is predicted to be the fastest: its step over what is predicted, a round each.
SLOWER = (1.10, 1.02, 1.20, 1.05, 1.15)
# Seconds are proportional to the examples, so that M costs nothing by itself.
TIMES = {
    kind: [[1e-4 * part * n] * LAYERS for n in (4, N)]
    for kind, part in (("forward", 1), ("recompute", 1), ("backward", 2))
}
CALIBRATION = {
    **TIMES,
    "alone": TIMES,
    "sizes": [4, N],
    "update": [0.0] * LAYERS,
    "activations": [0.0] * (LAYERS - 1),
    "gradients": [0.0] * (LAYERS - 1),
    "link": {"latency": 0.0, "bytes_per_second": BANDWIDTH, "overlap": True},
    "parameters": [1e6] * LAYERS,
}
COMMON = {"setup_s": 0.1, "unit": "x/s", "labels": {}}


def by_hand(spec: RunSpec) -> float:
    """Seconds of a step of plans that recompute nothing, or all of it on one device."""
    work = ALL * (4 / 3 if spec.checkpoint == "always" else 1)
    if spec.D == 2:
        return work / 2 + 12e6 / BANDWIDTH  # D = 2: the ring sends as many bytes as there are
    if spec.K == 1:
        return work
    return work / 2 * (spec.M + 1) / spec.M if spec.schedule != "naive" else work


def made(spec: RunSpec, number: int) -> Measured:
    if spec.task == "calibrate":
        record = {"calibration": CALIBRATION, "balance": [LAYERS], "task": "calibrate"}
        return Measured(round_record(record | COMMON))
    seconds = by_hand(spec)
    if (spec.D, spec.M, spec.checkpoint) == (2, 1, "never"):
        seconds *= SLOWER[number]
    none = {"bubble_idle_over_total": [None], "bubble_idle_over_work": [None], "peak_bytes": None}
    steps = {"step_s": [seconds], "loss": [1.0], "breakdown": {}} | none
    balance = [LAYERS // spec.total_stages] * spec.total_stages
    return Measured(round_record({**steps, "balance": balance, **COMMON}))


def test_steps_are_predicted_as_by_hand_and_the_advised_plan_is_held_against_the_fastest(
    tmp_path: Path,
):
    fill_with(tmp_path, experiment("laptop"), made, rounds=5)
    results = load(tmp_path)
    for plan in report.plans(results).to_dict("records"):
        spec, seconds = plan["spec"], plan[report.PREDICTED] / 1e3
        if spec.stages_per_rank is not None:
            # Half the bubble: it fills and drains with half stages.
            assert ALL / 2 < seconds < by_hand(spec)
        elif spec.checkpoint == "never" or (spec.K == 1 and spec.checkpoint == "always"):
            assert seconds == pytest.approx(by_hand(spec)), spec
    plans, verdict = report.tables(results)
    first = plans.shown.iloc[0]
    assert [*first[["D", "M", "recomputed"]]] == ["2", "1", "never"]
    assert first["error (%) predicted"].startswith("-9.1 [")  # 1 / 1.1 - 1 is the median error
    (line,) = verdict.shown.to_dict("records")
    assert line["advised"] == "data, K=1, D=2, M=1, recomputed never"
    assert line["fastest measured"] == "data, K=1, D=2, M=4, recomputed never"
    assert line["advised over fastest"].startswith("1.10 [1.02, ")
    assert line["goal"] == "at most 1.05: missed by 0.05"
