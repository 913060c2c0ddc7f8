"""The simulator's table where something is missing; the reference's has the rest."""

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
from repro.report.style import styled
from repro.simulate.calibration import Calibration, LayerTables
from repro.simulate.stage_costs import FREE

F = 0.01  # seconds of F and R of each layer, alone; B takes twice as long, and together everything
OFF = (0.02, 0.05, 0.04, 0.06, 0.03)  # by how much the simulated step is too long, a round each
BASE: dict[str, Any] = {"model": "transformer", "model_args": {"L": 2}, "K": 2}
TIMED = RunSpec(**BASE, M=2, N=4, task="calibrate", balance="uniform")
JUDGED = tuple(RunSpec(**BASE, M=M, N=8) for M in (1, 4))
GROUP = Group(name="transformer", runs=(TIMED, *JUDGED))
PLAN = Experiment(name="simulator", title="Right?", question="?", groups=(GROUP,))


def recorded(path: Path, alone: bool = True, calibrated: bool = True) -> Results:
    """Rounds of the experiment in which the step is what the simulator says over 1 + OFF."""

    def tables(factor: float) -> dict[str, Any]:
        row = (factor * F,) * 2
        return {"forward": (row,), "recompute": (row,), "backward": ((2 * factor * F,) * 2,)}

    cost = Calibration(
        **tables(2),
        sizes=(8,),
        update=(0.0, 0.0),
        activations=(0.0,),
        gradients=(0.0,),
        link=FREE,
        alone=LayerTables(**tables(1)) if alone else None,
    )

    def made(spec: RunSpec, number: int) -> Measured | None:
        if spec.task == "calibrate":
            about = {"balance": [2], "setup_s": 0.1, "unit": "x/s", "labels": {}}
            line = {"task": "calibrate", "calibration": cost, **about}
            return Measured(round_record(line)) if calibrated else None
        ways = ways_of(spec, cost, (1, 1))
        step_s = ways.get("mixed", ways["together"]) / (1 + OFF[number])
        spans, schedule = timeline(2, 4), make_schedule("gpipe", 2, 4)
        return Measured(record(spans, schedule, step_s=[step_s], loss=[1.0]))

    fill_with(path, PLAN, made, rounds=5)
    return load(path)


def test_errors_are_taken_inside_rounds(tmp_path):
    results = recorded(tmp_path)
    (table,) = report.tables(results)
    column = "error over measured (%) {}".format
    for found in table.data.to_dict("records"):
        assert found[column("mixed")] == pytest.approx(4)
        assert found[column("alone")] <= 4 < found[column("together")]
    # Alone F takes 10 and B 20 ms; together all take twice as long. With M=1 only R of the first
    # stage and F of the second run at the same time.
    assert table.data[column("together")][0] > 50
    with styled():
        drawn = report.figure(results)
        assert drawn is not None
        (axes,) = drawn.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "4"]


def test_what_is_missing(tmp_path):
    (table,) = report.tables(recorded(tmp_path / "a", alone=False))
    assert table.data["error over measured (%) together"].tolist()[0] == pytest.approx(4)
    assert table.shown["error over measured (%) mixed"].tolist()[0] == "-"
    (table,) = report.tables(recorded(tmp_path / "b", calibrated=False))
    assert table.shown["rounds"].tolist() == ["no calibration", "no calibration"]
