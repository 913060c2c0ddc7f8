"""`repro why` on records with known numbers: what it finds, what it says, and mistakes."""

import json
import sys
from pathlib import Path

import pytest

from repro.cli.main import main
from repro.gpipe.schedule.kinds import make_schedule
from repro.harness.job import Measured
from repro.harness.results import find_run, load
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


def run_of(results: Path, K: int, M: int) -> str:
    """The id of a run of table2, with its experiment."""
    runs = load(results).runs
    return next(
        f"table2/{run.id}" for run in runs if (run.experiment, run.K, run.M) == ("table2", K, M)
    )


def test_it_tells_the_story_to_people_and_to_programs(results, capsys):
    run = run_of(results, 2, 4)
    assert main(["why", run, "--results", str(results)]) == 0
    output = " ".join(capsys.readouterr().out.split())
    for words in (
        "fidelity measured K 2 M 4 N 32",
        "step 200 ms idle 17.5% bubble in theory 20.0%",
        "computation 60.0%, recompute 20.0%, update 2.5%, setup 1.2%, bubble 15.0%, imbalance 0.0%",
        "replayed 200 ms",
        "1 20.0% 5.0% 10.0%",
        "M doubled: 1.08x (simulated), the most of what costs no memory",
    ):
        assert words in output
    assert main(["why", run, "--json", "--results", str(results)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert run == f"table2/{found['run']}"
    assert (found["fidelity"], found["K"], found["M"]) == ("measured", 2, 4)
    assert found["step_s"] == found["replayed_s"] == pytest.approx(0.2)
    assert sum(sum(kinds.values()) for kinds in found["critical_path"]) == pytest.approx(0.2)
    free = {"change": "free link", "step_s": pytest.approx(0.2), "gain": 1.0}
    assert any(free == {name: change[name] for name in free} for change in found["changes"])


def test_ids_and_their_parts_are_found_own_results_first(results, tmp_path):
    run = run_of(results, 2, 1).removeprefix("table2/")
    parts = ("transformer-K2-M1", "K2-M1", run.rpartition("-")[2], f"table2/{run[3:]}")
    for text in (run, *parts, f"test-cpu-2c/laptop/{run}"):
        found, it = find_run(text, results)
        assert it.id == run
        assert found.journals[0].root == results
    fill(tmp_path / "reference", experiment())
    assert find_run("transformer-K2-M1", tmp_path)[1].id == run


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ("transformer-K2", ["names 3 runs", "table2/transformer-K2-M1-", "give more of one"]),
        ("transformer-K2-M4", ["names 2 runs", "table2/transformer-K2-M4", "again/"]),
        ("tranformer-K2-M1", ["no run below", "did you mean 'transformer-K2-M1-"]),
        ("table2", ["run = 'table2': names 6 runs", "/transformer-K1-M1-"]),
        ("transformer-K4-M1", ["no timeline: its status is skipped", "such as transformer-K1-M1"]),
    ],
)
def test_a_mistake_is_one_line(run, words, results, refused):
    error = refused(["why", run, "--results", str(results)])
    for word in words:
        assert word in error


def recorded(path: Path, steps: dict[int, list[float]], **changed: object) -> list[str]:
    """K=2 at these seconds for each M and round; returns what explains the run of M=4.

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
    return ["why", specs[0].run_id(plan.version, MACHINE.identity), "--results", str(path)]


def explained(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[dict, str]:
    """What programs and people are told."""
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert main(words) == 0
    return found, " ".join(capsys.readouterr().out.split())


def test_recorded_variants_stand_beside_their_prediction(tmp_path, capsys):
    steps = {4: [1.0] * 5, 8: [1.74] * 5, 2: [0.8] * 5, 16: [1.3, 0.8, 0.9, 1.2, 0.95]}
    found, output = explained(recorded(tmp_path, steps), capsys)
    by_M = {variant["value"]: variant for variant in found["variants"]}
    assert (by_M[2]["field"], by_M[2]["own"]) == ("M", 4)
    assert by_M[8]["gain"] == pytest.approx(1 / 1.74)
    assert by_M[8]["predicted"] == pytest.approx(1.08, abs=0.01)
    assert "M=8 1.08x 0.57x [0.57, 0.57]" in output
    assert "M=16 1.13x 1.05x [0.77, 1.25] ~" in output, "it may be chance"
    assert "M doubled" not in found["verdict"], "it was measured to be slower"
    (doubled,) = (change for change in found["changes"] if change["change"] == "M doubled")
    assert (doubled["gain"], doubled["fidelity"]) == (by_M[8]["gain"], "measured")
    assert output.count("1.08x") == 1, "what was simulated stands beside what was measured alone"
    few, output = explained(recorded(tmp_path / "few", {4: [1.0] * 2, 16: [0.5] * 2}), capsys)
    assert "2.00x (2 rounds)" in output
    faster, _ = explained(recorded(tmp_path / "faster", {4: [1.0] * 5, 8: [0.5] * 5}), capsys)
    assert faster["verdict"].startswith("M doubled: 2.00x [2.00, 2.00] (measured), the most")
    assert few["variants"][0]["low"] is None
