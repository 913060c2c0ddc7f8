"""`repro why` on records with known numbers: what it finds, what it tells, and what it says of
mistakes."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from repro.cli.main import main
from repro.cli.why import find
from repro.gpipe.schedule.kinds import make_schedule
from repro.harness.job import Measured
from repro.harness.record import Folder
from repro.harness.results import load
from repro.harness.spec import Group, RunSpec

sys.path.insert(0, str(Path(__file__).parent.parent / "report"))
from recorded import MACHINE, experiment, fill, fill_with, record, timeline  # pyright: ignore[reportMissingImports]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("results")
    fill(path, experiment())
    fill(path, experiment(name="again", Ms=(4,)))
    fill(path / "reference", experiment())
    return path


def run_of(results: Path, K: int, M: int) -> Path:
    """The folder of a run of table2."""
    (path,) = results.glob(f"*/laptop/table2/transformer-K{K}-M{M}-*")
    return path


@pytest.mark.filterwarnings("error")
def test_it_tells_the_story(results, capsys):
    assert main(["why", str(run_of(results, 2, 4))]) == 0
    output = " ".join(capsys.readouterr().out.split())
    for words in (
        "measured: K=2, M=4, N=32, schedule gpipe, re-materialization always",
        "step 200.0 ms, the step recorded in the newest of 5 rounds; idle 17.5% of K x step, ",
        "in theory (K-1)/(M+K-1) = 20.0%",
        "bubble: idle time that equal stages",
        "computation 60.0%, recompute 20.0%, update 2.5%, setup 1.2%, bubble 15.0%, imbalance 0.0%",
        "stage 1 20.0% 5.0% 10.0% 35.0%",
        "unchanged 200.0 1.00x replayed: +0.0% of the recorded step",
        "M quadrupled 177.5 1.13x",
        "of K x step: M=16 instead of 4 at the same N would give about 1.13x; keeping all "
        "activations",
    ):
        assert words in output


def test_for_programs_it_is_one_object(results, capsys):
    spec = run_of(results, 2, 4) / "spec.json"
    assert main(["why", "--json", "--run", str(spec)]) == 0
    output = json.loads(capsys.readouterr().out)
    assert (output["run"], output["fidelity"], output["K"], output["M"]) == (
        spec.parent.name,
        "measured",
        2,
        4,
    )
    assert output["step_s"] == pytest.approx(0.2)
    assert output["replayed_s"] == pytest.approx(0.2)
    assert sum(sum(kinds.values()) for kinds in output["critical_path"]) == pytest.approx(0.2)
    assert {"name": "free link", "step_s": pytest.approx(0.2), "factor": 1.0} in output["changes"]


def test_a_run_copied_out_of_its_experiment_is_enough(results, tmp_path, capsys):
    shutil.copytree(run_of(results, 2, 4), tmp_path / "copy")
    assert main(["why", str(tmp_path / "copy")]) == 0
    assert "step 200.0 ms; idle" in capsys.readouterr().out


def test_ids_and_their_beginnings_are_found_own_results_first(results, tmp_path):
    spec = run_of(results, 2, 1) / "spec.json"
    assert (results / "reference" / spec.relative_to(results)).exists()
    assert find(spec.parent.name, results) == find("transformer-K2-M1", results) == spec
    fill(tmp_path / "reference", experiment())
    assert find("transformer-K2-M1", tmp_path) == tmp_path / "reference" / spec.relative_to(results)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (
            "transformer-K2",
            ["run = 'transformer-K2': 2 ids begin so", "transformer-K2-M1-", "give more of one"],
        ),
        (
            "transformer-K2-M4",
            ["recorded 2 times", "table2/transformer-K2-M4", "again/", "name one of these folders"],
        ),
        ("tranformer-K2-M1", ["no run below", "did you mean 'transformer-K2-M1-"]),
        ("table2", ["run = 'table2': is an experiment", "runs of it: transformer-K1-M1-"]),
        ("sweep", ["is an experiment", "`repro run sweep` records some"]),
        (__file__, ["is no spec.json; give that of a run, its folder or its id"]),
        (str(Path(__file__).parent), ["is a folder without a spec.json, give that of a run"]),
        ("zzz", ["run = 'zzz'", "there is transformer-K1-M1-", "and 1 others"]),
        (
            "transformer-K4-M1",
            [
                "has no timeline: its status is skipped (needs 4 devices)",
                "such as transformer-K1-M1",
            ],
        ),
    ],
)
def test_a_mistake_is_one_line(run, words, results, capsys):
    assert main(["why", run, "--results", str(results)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    for word in words:
        assert word in error


def test_timelines_that_tell_nothing_are_one_line(results, tmp_path, capsys):
    shutil.copytree(run_of(results, 2, 4), tmp_path / "run")
    spec = tmp_path / "run" / "spec.json"
    fields = json.loads(spec.read_text())
    for changed, words in (
        ({"M": 2}, "they are not of one run; measure it again with --force"),
        ({"K": 1}, "stages 0 to 0"),
        ({"K": 0}, "spec.json: K = 0"),
    ):
        spec.write_text(json.dumps(fields | changed))
        assert main(["why", str(spec)]) == 2
        assert words in capsys.readouterr().err
    spec.write_text(json.dumps(fields | {"trace": False}))
    (tmp_path / "run" / "timeline.parquet").write_bytes(b"PAR1")
    assert main(["why", str(spec)]) == 2
    assert "timeline.parquet: no table that can be read" in capsys.readouterr().err
    (tmp_path / "run" / "timeline.parquet").unlink()
    assert main(["why", str(spec)]) == 2
    assert "timed without spans" in capsys.readouterr().err


def recorded(path: Path, steps: dict[int, list[float]], **changed: object) -> Path:
    """A folder with K=2 at these seconds for each M and round; returns the spec.json of M=4.

    With something changed there is one more run like M=4, which took twice as long.
    """
    specs = [RunSpec(model="transformer", model_args={"L": 4}, K=2, M=M, N=32) for M in steps]
    if changed:
        specs.append(specs[0].model_copy(update=changed))
    plan = experiment().model_copy(
        update={"groups": (Group(name="transformer", runs=tuple(specs)),)}
    )

    def made(spec: RunSpec, number: int) -> Measured:
        spans = timeline(2, spec.M)
        seconds = steps[spec.M][number] * (1 if spec in specs[: len(steps)] else 2)
        schedule = make_schedule("gpipe", 2, spec.M)
        return Measured(record(spans, schedule, step_s=[seconds], loss=[1.0]), spans)

    fill_with(path, plan, made, rounds=len(steps[4]))
    (spec,) = path.glob(
        f"*/laptop/table2/{specs[0].run_id(plan.version, MACHINE.identity)}/spec.json"
    )
    return spec


def explained(spec: Path, capsys: pytest.CaptureFixture[str]) -> tuple[dict, str]:
    """What programs and people are told."""
    capsys.readouterr()
    assert main(["why", str(spec), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert main(["why", str(spec)]) == 0
    return found, " ".join(capsys.readouterr().out.split())


def test_what_was_measured_to_be_slower_is_not_recommended(tmp_path, capsys):
    found, output = explained(recorded(tmp_path, {4: [1.0] * 5, 16: [1.74] * 5}), capsys)
    (other,) = found["neighbours"]
    assert (other["field"], other["value"], other["rounds"]) == ("M", 16, 5)
    assert other["gain"] == pytest.approx(1 / 1.74)
    assert other["predicted"] == pytest.approx(1.13, abs=0.01)
    assert "M=16 1.13x 0.57x [0.57, 0.57]" in output
    assert "would give about" not in found["verdict"]


def test_what_was_measured_to_be_faster_stands_first(tmp_path, capsys):
    found, _ = explained(recorded(tmp_path, {4: [1.0] * 5, 1: [0.5] * 5, 2: [0.8] * 5}), capsys)
    assert [other["value"] for other in found["neighbours"]] == [1, 2]
    assert "M=16" not in found["verdict"], "a smaller M was faster"


def test_a_difference_that_may_be_chance_is_marked(tmp_path, capsys):
    spec = recorded(tmp_path, {4: [1.0] * 5, 16: [1.3, 0.8, 0.9, 1.2, 0.95]})
    assert "M=16 1.13x 1.05x [0.77, 1.25] ~" in explained(spec, capsys)[1]
    few, output = explained(recorded(tmp_path / "few", {4: [1.0] * 2, 16: [0.5] * 2}), capsys)
    assert "2.00x (2 rounds)" in output
    assert few["neighbours"][0]["low"] is None


def test_another_schedule_is_a_neighbour_and_two_changes_are_none(tmp_path, capsys):
    found, _ = explained(recorded(tmp_path, {4: [1.0] * 5}, schedule="1f1b"), capsys)
    (other,) = found["neighbours"]
    assert (other["field"], other["value"], other["own"]) == ("schedule", "1f1b", "gpipe")
    assert other["gain"] == 0.5
    both, output = explained(
        recorded(tmp_path / "both", {4: [1.0] * 5}, schedule="1f1b", N=64), capsys
    )
    assert both["neighbours"] == []
    assert "Recorded runs" not in output


def test_runs_that_were_never_timed_together_are_compared_without_an_interval(tmp_path, capsys):
    spec = recorded(tmp_path, {4: [1.0] * 5, 16: [0.5] * 5})
    folder = Folder(spec.parent.parent)
    for run in load(tmp_path).specs:
        names = list(folder.rounds(run))
        folder.forget(run, names[2:] if "K2-M4-" in run else names[:2])
    found, output = explained(spec, capsys)
    assert found["neighbours"][0]["rounds"] == 0
    assert "2.00x (other rounds)" in output
