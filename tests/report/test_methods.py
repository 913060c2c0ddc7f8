"""The methods side by side, from recorded rounds with known numbers."""

from math import isnan
from typing import Any

import pytest
from recorded import fill_with

from experiments.methods import report as methods
from experiments.methods import volume
from experiments.methods.recorded import kept_micro_batches, label_of, method_of
from experiments.methods.runs import DEEP, PIPELINES, shallow
from repro.gpipe.schedule.kinds import make_schedule
from repro.harness import catalog
from repro.harness.job import Measured
from repro.harness.results import Results, load
from repro.harness.schema import round_record
from repro.harness.spec import SCALES, RunSpec
from repro.harness.tasks.simulate import simulated
from repro.methods import named
from repro.models import build
from repro.report.style import styled
from repro.report.table import Table

MIB = 2**20
STEP_S = {"single": 2.0, "data": 1.25, "naive": 2.5, "pipedream": 0.8}  # others: 1.6
RECOMPUTE = {"never": 1.0, "except_last": 1.2, "always": 1.3}  # times the step
DRIFT = (1.0, 1.1, 1.2, 1.3, 1.4)  # of a step in each of five rounds
SENT = {"gpipe": 3 * MIB, "data": 8 * MIB}


def line(run: RunSpec, step_s: float, **changed: Any) -> Measured:
    values = {
        "step_s": [step_s],
        "loss": [2.0, 1.5],
        "bubble_idle_over_total": [0.25],
        "bubble_idle_over_work": [1 / 3],
        "breakdown": {"recompute": 0.2},
        "peak_bytes": [100 * MIB, 90 * MIB],
        "balance": [1] * run.K,
        "setup_s": 0.1,
        "unit": "examples/s",
        "labels": {},
    }
    return Measured(round_record(values | changed), None)


def made(run: RunSpec, number: int) -> Measured | None:
    """What is recorded of a run: nothing of one of those that take four processes."""
    name = name_of(run)
    if run.fidelity == "emulated":
        return line(run, 0.5 if run.model_args["elements"] > 2**18 else 0.4)
    if run.fidelity == "simulated":
        return simulated(run, "cpu") if run.model == "timed" else line(run, 3.0)
    if name == "gpipe-x-data":
        return None
    step_s = DRIFT[number] * STEP_S.get(name, 1.6) * RECOMPUTE[run.checkpoint]
    sent = {"sent_bytes": [{"messages": SENT[name]}, {"messages": 1}]} if name in SENT else {}
    late = {"staleness": [1, 0], "stashed_bytes": [2 * MIB, 0]} if name == "pipedream" else {}
    return line(run, step_s, **sent, **late)


def name_of(run: RunSpec) -> str:
    fields = ("library", "schedule", "K", "D", "tensor_parallel", "zero")
    return named.name_of(**{field: getattr(run, field) for field in fields})


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    path = tmp_path_factory.mktemp("results")
    fill_with(path, catalog.find("methods").build("smoke"), made, rounds=len(DRIFT))
    return load(path)


@pytest.fixture(scope="module")
def tables(results: Results) -> dict[str, Table]:
    return {table.name: table for table in methods.tables(results)}


def rows_of(table: Table, **wanted: str) -> list[dict[Any, Any]]:
    rows = [
        {
            " ".join(filter(None, name)) if isinstance(name, tuple) else name: cell
            for name, cell in row.items()
        }
        for row in table.shown.to_dict("records")
    ]
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


@pytest.mark.parametrize("scale", SCALES)
def test_every_scale_has_a_plan(scale):
    plan = catalog.find("methods").build(scale)
    names = [group.name for group in plan.groups]
    assert names[:3] == ["transformer", "amoebanet-d", "resnet50"]
    # Every group that is divided by one device has it.
    for group in plan.groups[:4]:
        assert any(name_of(run) == "single" and run.checkpoint == "never" for run in group.runs)


def test_what_was_not_run_says_so_and_has_no_number(tables):
    (row,) = rows_of(tables["methods"], model="Transformer", method="gpipe-x-data")
    assert row["throughput over one device, measured"] == "not run"
    assert row["devices"] == "4"
    assert row["loss measured"] == row["sent MiB measured"] == "-"


def test_processes_that_share_cores_have_memory_and_a_loss_but_no_time(results, tables):
    (run,) = [run for run in results.runs if run.spec.tensor_parallel and run.K == 2]
    assert run.rounds[0].loss == 1.5
    timed = (run.step_s, run.throughput, run.bubble_idle_over_total, run.bubble_idle_over_work)
    assert all(map(isnan, timed))
    assert run.rounds[0].breakdown == {}
    (row,) = rows_of(tables["methods"], model="Transformer", method="gpipe-x-tensor")
    assert row["throughput over one device, measured"] == "not timed"
    assert row["idle/total measured"] == "-"
    assert (row["peak MiB measured"], row["loss measured"]) == ("100.0", "1.50000")


@pytest.mark.parametrize(("name", "kept"), [("naive", 1), ("gpipe", 16), ("1f1b", 8), ("zb-h1", 8)])
def test_micro_batches_kept(name: str, kept: int):
    assert kept_micro_batches(make_schedule(name, 8, 16, "never")) == kept


def test_micro_batches_kept_of_two_stages_count_half_each():
    """With K=2 and M=4 rank 0 is 5 forwards of half its layers ahead of its first backward."""
    assert kept_micro_batches(make_schedule("interleaved-1f1b", 4, 4, "never", 2)) == 2.5


def test_volume_of_both_shapes(tables):
    rows = rows_of(tables["methods_shapes"], method="gpipe")
    assert len(rows) == 2
    deep, wide = (float(row["sent GiB at full size counted"]) for row in rows)
    assert wide == 2 * deep == 1.0  # 2 x 4 bytes x 32 x 1024 x 4096
    tensor = rows_of(tables["methods_shapes"], method="tensor")
    deep, wide = (float(row["sent GiB at full size counted"]) for row in tensor)
    assert deep == 2 * wide == 42.0  # 4 all-reduces x 24 blocks x 7/4 x 1/4 GiB
    assert rows[0]["sent MiB measured"] == "3.00"


@pytest.mark.parametrize("scale", ["smoke", "laptop"])
def test_parameters_are_those_of_the_model(scale):
    for args in (DEEP[scale], shallow(DEEP[scale])):
        layers = [layer() for layer in build("transformer", **args).layers if callable(layer)]
        counted = sum(weight.numel() for layer in layers for weight in layer.parameters())
        assert volume.parameters(args, args["V"]) == counted


@pytest.mark.parametrize("scale", ["smoke", "laptop", "paper"])
def test_both_shapes_have_equally_many_weights(scale):
    deep, wide = DEEP[scale], shallow(DEEP[scale])
    assert deep["L"] * deep["d"] ** 2 == wide["L"] * wide["d"] ** 2
    assert deep["H"] / deep["d"] == wide["H"] / wide["d"]


def test_labels(results):
    labels = {label_of(run) for run in results.runs if run.group == "transformer"}
    assert {"single", "gpipe, recomputes", "gpipe, recomputes all but the last"} <= labels
    assert {"gpipe-x-data", "gpipe-x-zero1", "gpipe-x-tensor", "zero1"} <= {
        method_of(run) for run in results.runs
    }


def test_figures_are_drawn_of_what_there_is(results):
    with styled():
        drawn = {name: figure for name, figure, _ in methods.figures(results, results.runs)}
        axes = {name: figure.axes for name, figure in drawn.items() if figure is not None}
    assert set(axes) == set(drawn) == {"glance", "schedules", "loss"}
    assert len(axes["schedules"]) == len(PIPELINES)
    assert len(axes["loss"][0].lines) == 4
