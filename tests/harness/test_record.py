import dataclasses
import json
import math
from pathlib import Path

import pytest
from crew import MACHINE, SPEC_SIZES, experiment, metrics, spec

from repro.gpipe import Span, Timeline
from repro.harness.job import Measured
from repro.harness.record import Folder
from repro.harness.results import COLUMNS, Results, Run, load
from repro.harness.schema import CheckRound, Finding
from repro.harness.spec import RunSpec

TIMELINE = Timeline((Span("F", 0, 0, 0.5, 1.5, 3),), 2)
WHEN = ("2026-01-01T00:00:00+00:00", "2026-01-01T00:00:01+00:00")


ONE, TWO = (spec(K, 4).run_id(1, MACHINE.identity) for K in (1, 2))


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Two rounds of K=1 and K=2 at M=4."""
    made = Folder.of(tmp_path, MACHINE, "smoke", "tiny")
    declare(made, spec(1, 4), spec(2, 4))
    for seconds in (1.0, 3.0):
        measured = {
            ONE: Measured(metrics(2 * seconds, 1), TIMELINE),
            TWO: Measured(metrics(seconds, 2), TIMELINE),
        }
        made.commit_round("timed", measured, MACHINE, WHEN)
    return made


def declare(folder: Folder, *specs: RunSpec) -> list[str]:
    """Declare runs of one group; their ids."""
    runs = {one.run_id(1, MACHINE.identity): ("timed", one) for one in specs}
    folder.write_specs(experiment(*specs), runs, MACHINE.identity, accumulate=False)
    return list(runs)


def the_run(results: Results, run: str, experiment: str = "tiny") -> Run:
    """The run of this id in an experiment."""
    (found,) = [r for r in results.runs if (r.id, r.experiment) == (run, experiment)]
    return found


def test_a_row_summarises_the_rounds(folder: Folder, tmp_path: Path):
    row = load(tmp_path).rows.set_index("run").loc[TWO]
    assert row["step_s"] == 2.0  # median over rounds of the median over steps
    assert row["throughput"] == pytest.approx((8 / 1 + 8 / 3) / 2)
    assert row["speedup_vs_k1"] == 2.0
    assert (row["model_args"], row["optimizer"], row["lr"]) == (SPEC_SIZES, "sgd", 0.01)
    assert (row["peak_gib_max"], row["peak_gib_per_stage"]) == (1.0, (1.0, 1.0))
    assert (row["machine"], row["scale"], row["group"], row["rounds"]) == (
        MACHINE.slug,
        "smoke",
        "timed",
        2,
    )
    assert (row["device"], row["unit"], row["balance"]) == ("Test CPU", "examples/s", (2, 2))


def test_every_field_of_a_spec_is_in_a_row():
    """Or runs could differ by their hash alone. What a link does is in the labels of the report."""
    named = {"checkpoint": "remat", "balance": "cut_by", "partitioner": "cut_by"}
    assert {named.get(field, field) for field in RunSpec.model_fields} - {"link"} <= set(COLUMNS)


def test_an_interval_is_named_after_its_quantity(tmp_path: Path):
    made = Folder.of(tmp_path, MACHINE, "smoke", "tiny")
    specs = [spec(K, M) for K, M in ((1, 4), (2, 1), (2, 4))]
    declare(made, *specs)
    # Throughput of K=2, M=4 over K=1, M=4 is 1.9, 2.0 or 2.1; over K=2, M=1 it is always 3.
    for base in (1.9, 2.0, 2.1, 1.9, 2.1):
        steps = zip(specs, (base, 3.0, 1.0), strict=True)
        lines = {
            one.run_id(1, MACHINE.identity): Measured(metrics(step, one.K), TIMELINE)
            for one, step in steps
        }
        made.commit_round("timed", lines, MACHINE, WHEN)
    rows = load(tmp_path).rows.set_index(["K", "M"])
    row = rows.loc[2, 4]
    assert row["speedup_vs_k1_ci_low"] < row["speedup_vs_k1"] == 2.0 < row["speedup_vs_k1_ci_high"]
    names = ("speedup_vs_k2m1", "speedup_vs_k2m1_ci_low", "speedup_vs_k2m1_ci_high")
    assert [row[name] for name in names] == [3.0, 3.0, 3.0]
    assert math.isnan(rows.loc[(1, 4), "speedup_vs_k1_ci_low"]), "a baseline has none over itself"


def test_the_timeline_comes_back(folder: Folder, tmp_path: Path):
    results = load(tmp_path)
    run = the_run(results, TWO)
    assert results.timeline(run) == TIMELINE
    assert results.timeline(dataclasses.replace(run, id="three")) is None


def test_a_run_without_spans_has_a_step_time_and_no_timeline(tmp_path: Path):
    made = Folder.of(tmp_path, MACHINE, "smoke", "tiny")
    untraced = spec(2, 4, trace=False)
    (run,) = declare(made, untraced)
    unknown = {"bubble_idle_over_total": [None], "bubble_idle_over_work": [None], "breakdown": {}}
    made.commit_round("timed", {run: Measured(metrics(1.0, 2, **unknown))}, MACHINE, WHEN)
    results = load(tmp_path)
    row = results.rows.set_index("run").loc[run]
    assert row["step_s"] == 1.0
    assert math.isnan(row["bubble_idle_over_total"])
    assert results.timeline(the_run(results, run)) is None


def test_checks_are_recorded_beside_no_step(tmp_path: Path):
    made = Folder.of(tmp_path, MACHINE, "smoke", "tiny")
    (run,) = declare(made, spec(2, 4, task="check"))
    checks = {"dropout": Finding(verdict="refused", value=None, evidence="it said no")}
    record = CheckRound(checks=checks, balance=[1, 1], setup_s=0.1, unit="x/s", labels={})
    made.commit_round("timed", {run: Measured(record)}, MACHINE, WHEN)
    results = load(tmp_path)
    (round_,) = the_run(results, run).rounds
    assert round_.record == record.model_copy(update={"round": "timed-0001"})
    assert math.isnan(results.rows["step_s"].iloc[0])


@pytest.mark.parametrize("place", ["machine", "machine/smoke"])
def test_a_listing_in_no_place_of_ours_is_one_line(folder: Folder, tmp_path: Path, place: str):
    stray = tmp_path / place / "experiment.json"
    stray.parent.mkdir(parents=True, exist_ok=True)
    stray.write_text('{"runs": {}}')
    with pytest.raises(ValueError, match=f"^{stray}: lies in no folder"):
        load(tmp_path)


def test_reference_results_inside_are_not_mixed_in(folder: Folder, tmp_path: Path):
    folder.path.rename(tmp_path / "moved")
    target = tmp_path / "reference" / "m" / "smoke" / "tiny"
    target.parent.mkdir(parents=True)
    (tmp_path / "moved").rename(target)
    assert len(load(tmp_path).rows) == 0
    assert len(load(tmp_path / "reference").rows) == 2


def test_env_says_what_and_where_but_names_no_one(folder: Folder):
    import getpass
    import socket

    text = (folder.path / ONE / "env.json").read_text()
    assert {"torch", "python", "cpu", "cores", "gpus", "commit", "dirty", "os"} <= set(
        json.loads(text)
    )
    for secret in (str(Path.home()), socket.gethostname(), f'"{getpass.getuser()}"'):
        assert secret not in text
    assert not list(folder.path.rglob(".*"))  # nothing half-written stays
