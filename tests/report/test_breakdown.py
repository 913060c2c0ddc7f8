"""The pie beside made-up steps: verdicts part by part, the bars."""

from typing import Any

import pytest
from recorded import fill_with, record, timeline

from experiments.breakdown import report as breakdown
from repro.gpipe.schedule.kinds import make_schedule
from repro.harness.job import Measured
from repro.harness.results import Results, load
from repro.harness.spec import Experiment, Group, RunSpec
from repro.report.compare import rows_of
from repro.report.style import styled

SHARES = {"computation": 0.66, "recompute": 0.25, "update": 0.003, "setup": 0.0, "bubble": 0.041}
SHARES |= {"imbalance": 0.05, "transfer": -0.004}
SMALL = {"L": 2, "d": 8, "H": 16, "heads": 2, "V": 32, "T": 4}


def made(run: RunSpec, _number: int) -> Measured | None:
    if run.fidelity == "emulated":
        return None
    spans, schedule = timeline(run.K, run.M), make_schedule("gpipe", run.K, run.M, "always")
    changed = (
        {"breakdown": SHARES} if run.fidelity == "simulated" and run.M == 16 else {"loss": [1.0]}
    )
    modelled = (
        {"modelled": {"batch": 32, "stages": stages(), "rungs": {}}}
        if run.fidelity == "simulated"
        else {}
    )
    return Measured(record(spans, schedule, **changed, **modelled))


def stages() -> dict[str, Any]:
    both = {name: [0.1, 0.1] for name in ("forward", "recompute", "backward", "update", "setup")}
    return both | {
        "activations": [1.0],
        "gradients": [1.0],
        "link": {"latency": 0.0, "bytes_per_second": None},
    }


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    path = tmp_path_factory.mktemp("results")
    given: dict[str, Any] = {
        "model": "transformer",
        "model_args": {"L": 48},
        "K": 2,
        "N": 32,
        "profile": "tpu-v3",
    }
    groups = (
        Group(
            name="transformer",
            runs=(RunSpec(model="transformer", model_args=SMALL, K=2, M=16, N=32),),
        ),
        Group(
            name="simulated",
            runs=tuple(RunSpec(M=m, fidelity="simulated", **given) for m in (8, 16, 32)),
        ),
        Group(name="emulated", runs=(RunSpec(M=16, fidelity="emulated", **given),)),
    )
    fill_with(path, Experiment(name="breakdown", title="Parts", question="?", groups=groups), made)
    return load(path)


def test_each_part_is_held_against_the_pie(results):
    table = breakdown.by_part(results)
    rows = {one["", "part"]: one for one in table.shown.to_dict("records")}
    judged = {part: one["simulated against quoted", "Transformer"] for part, one in rows.items()}
    assert judged == {
        "computation": "+0.4 points",
        "recompute": "+2.5 points",
        "load imbalance": "+1.8 points",
        "bubble": "+0.0 points",
        "set-up": "-2.9 points",
        "weight update": "-1.4 points",
        "transfer": "-",
    }
    assert {one["emulated", "Transformer"] for one in rows.values()} == {"not run"}
    assert rows["computation"]["quoted", "pie"] == "65.6%"
    assert table.data is not None
    shares = table.data["measured", "Transformer"]
    assert sum(shares) == pytest.approx(1)


def test_bars_stand_under_the_pie(results):
    with styled():
        ((name, figure, caption),) = breakdown.figures(results, rows_of(results, status="done"))
        drawn: Any = figure
        labels = [text.get_text() for text in drawn.axes[0].get_yticklabels()]
        assert (name, labels) == (
            "parts",
            [
                "quoted: NeurIPS Table 4",
                "measured, laptop size: Transformer",
                "simulated: Transformer",
            ],
        )
        widths = [bar.get_width() for bar in drawn.axes[0].containers[0]]
        assert widths[0] == pytest.approx(65.6)
        assert widths[2] == pytest.approx(66)
        assert "M=16" in caption
