"""The simulator judged on made-up rounds: known calibrations, steps a known part off."""

from pathlib import Path
from typing import Any

import pytest
from recorded import fill_with, record, timeline

from experiments.simulator import report
from repro.gpipe.schedule.kinds import make_schedule
from repro.harness.job import Measured
from repro.harness.predict import ways_of
from repro.harness.results import Results, load
from repro.harness.schema import round_record
from repro.harness.spec import Experiment, Group, RunSpec
from repro.report import figures
from repro.report.compare import rows_of
from repro.report.style import styled
from repro.simulate import Calibration, LayerTables, StageCosts
from repro.simulate.stage_costs import FREE

# seconds of F and R of each layer, alone; B takes twice as long, and together everything does
F = 0.01
OFF = (0.02, 0.05, 0.04, 0.06, 0.03)  # by how much the simulated step is too long, a round each
BASE: dict[str, Any] = {"model": "transformer", "model_args": {"L": 2}, "K": 2}
TIMED = RunSpec(**BASE, M=2, N=4, task="calibrate", balance="uniform")
JUDGED = tuple(RunSpec(**BASE, M=M, N=8) for M in (1, 4))
KNOWN: dict[str, Any] = {"model": "timed", "model_args": {"L": 2}, "K": 2, "M": 4, "N": 4}
PAIR = tuple(
    RunSpec(**KNOWN, balance="uniform", fidelity=fidelity) for fidelity in ("emulated", "simulated")
)
PLAN = Experiment(
    name="simulator",
    title="Right?",
    question="?",
    groups=(
        Group(name="transformer", runs=(TIMED, *JUDGED)),
        Group(name="known-durations", runs=PAIR),
    ),
)


def calibration(alone: bool) -> Calibration:
    def tables(factor: float) -> dict[str, Any]:
        row = (factor * F,) * 2
        return {"forward": (row,), "recompute": (row,), "backward": ((2 * factor * F,) * 2,)}

    lone = LayerTables(**tables(1)) if alone else None
    return Calibration(
        **tables(2),
        sizes=(8,),
        update=(0.0, 0.0),
        activations=(0.0,),
        gradients=(0.0,),
        link=FREE,
        alone=lone,
    )


def recorded(
    path: Path, alone: bool = True, rounds: int = 5, without: tuple[RunSpec, ...] = ()
) -> Results:
    """Rounds of the experiment in which the step is what the simulator says over 1 + OFF."""
    cost = calibration(alone)

    def made(spec: RunSpec, number: int) -> Measured | None:
        if spec in without:
            return None
        if spec.task == "calibrate":
            about = {"balance": [2], "setup_s": 0.1, "unit": "x/s", "labels": {}}
            return Measured(round_record({"task": "calibrate", "calibration": cost, **about}))
        spans, schedule = timeline(2, 4), make_schedule("gpipe", 2, 4)
        if spec.fidelity == "simulated":
            stages = StageCosts.uniform(2, F, F, 2 * F).plain()
            modelled = {"batch": 4, "stages": stages, "rungs": {}}
            return Measured(record(spans, schedule, step_s=[1.0], modelled=modelled))
        step_s = 1 / (1 + OFF[number] / 10)
        if spec.fidelity == "measured":
            ways = ways_of(spec, cost, (1, 1))
            step_s = ways.get("mixed", ways["together"]) / (1 + OFF[number])
        return Measured(record(spans, schedule, step_s=[step_s], loss=[1.0]))

    fill_with(path, PLAN, made, rounds=rounds)
    return load(path)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return recorded(tmp_path_factory.mktemp("results"))


def test_errors_are_taken_inside_rounds(results):
    (table,) = report.tables(results)
    one, four, known = table.data.to_dict("records")
    column = "error over measured (%) {}".format
    for found in (one, four):
        assert found[column("mixed")] == pytest.approx(4)
        assert 1.999 < found[column("mixed: low")] < 4 < found[column("mixed: high")] < 6.001
        assert found[column("alone")] <= 4 < found[column("together")]
    # Alone F takes 10 and B 20 ms; together all take twice as long. With M=1 only R of the first
    # stage and F of the second run at the same time.
    assert one[column("together")] > 50
    assert known["error over emulated (%) known"] == pytest.approx(0.4)
    assert (known["step (ms) simulated"], known["model"]) == (1000, "known durations")


def test_old_rounds_were_timed_together_only(tmp_path):
    (table,) = report.tables(recorded(tmp_path, alone=False))
    assert table.data["error over measured (%) together"].tolist()[0] == pytest.approx(4)
    assert table.shown["error over measured (%) mixed"].tolist()[0] == "-"


def test_what_is_missing_has_a_word(tmp_path):
    (table,) = report.tables(recorded(tmp_path, rounds=1, without=(TIMED, PAIR[0])))
    assert table.shown["rounds"].tolist() == ["no calibration", "no calibration", "planned"]


def test_the_figure_has_a_category_for_each_measured_run(results, tmp_path):
    with styled():
        drawn = report.figure(results, rows_of(results, status="done"))
        assert drawn is not None
        (axes,) = drawn.axes
        assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "4"]
        assert axes.get_title(loc="left").startswith("Transformer, K=2 (laptop")
    stems = [one.stem.name for one in figures.draw_all(results, tmp_path)]
    assert stems == ["simulator_error"]
