"""`repro.results`, `repro report` of runs, and the recipes of docs/cli.md."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import repro
from repro.cli.main import main
from repro.harness.frame import Frame
from repro.harness.results import find_run

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "results/reference"
(FIGURE2,) = (str(path.relative_to(REFERENCE)) for path in REFERENCE.glob("*/laptop/figure2"))
REPORT = ["report", "--results", str(REFERENCE)]


@pytest.fixture(scope="module")
def rounds() -> Frame:
    return repro.results(REFERENCE)


def test_every_run_and_round_is_a_row(rounds: Frame):
    assert not rounds.duplicated(["machine", "scale", "experiment", "run", "round"]).any()
    assert set(rounds.fidelity) >= {"measured", "emulated", "simulated", "counted"}
    wide = rounds[(rounds.experiment == "two_gpu_demo") & (rounds.fidelity == "measured")]
    assert wide[wide.K == 2]["speedup_vs_k1"].notna().any()


def test_runs_are_listed_by_experiment_and_one_by_one(rounds: Frame, capfd, refused: Any):
    runs = rounds.drop_duplicates(["machine", "scale", "experiment", "run"])
    assert main([*REPORT, "--runs"]) == 0
    lines = [line.split() for line in capfd.readouterr().out.splitlines()]
    assert len(lines) < 40, "one screen"
    counts = {tuple(line[:3]): int(line[3]) for line in lines if line[3:4] and line[3].isdigit()}
    assert counts == runs.groupby(["machine", "scale", "experiment"]).size().to_dict()

    assert main([*REPORT, "--runs", "advise", "figure2"]) == 0
    _, _, header, *lines, _, hint = capfd.readouterr().out.splitlines()
    columns = [header.split().index(name) for name in ("run", "experiment", "K", "M")]
    shown = runs[runs.experiment.isin(["advise", "figure2"])]
    expected = shown[["run", "experiment", "K", "M"]].astype(str).to_numpy().tolist()
    assert [[line.split()[at] for at in columns] for line in lines] == expected
    assert "`repro report --run RUN`" in hint
    assert main([*REPORT, "--runs", "advise", "figure2", "--json"]) == 0
    printed = json.loads(capfd.readouterr().out)["runs"]
    assert [[str(run[n]) for n in ("run", "K", "M")] for run in printed] == [
        [run, K, M] for run, _, K, M in expected
    ]
    error = refused([*REPORT, "--runs", "figur2"])
    assert "--runs figur2: recorded are " in error
    assert "did you mean 'figure2'" in error


def test_one_run_has_its_settings_its_rounds_and_its_median_step(
    rounds: Frame, capfd: pytest.CaptureFixture[str], refused: Any
):
    of = rounds[(rounds.experiment == "figure2") & (rounds.M == 4)]
    assert main([*REPORT, "--run", of.run.iloc[0][:-2]]) == 0
    output = capfd.readouterr().out
    step, speed = f"{1e3 * of.step_s.iloc[0]:.0f} ms", f"{of.throughput.iloc[0]:.3g} examples/s"
    for words in (FIGURE2, "K=4, M=4, N=4", step, speed, *of["round"]):
        assert words in output
    drawn = re.findall(r"stage \d \|([FRBU.]+)\|$", output, flags=re.MULTILINE)
    assert [len(line) for line in drawn] == [72] * 4
    assert len(output.splitlines()) < 40, "one screen"
    error = refused([*REPORT, "--run", "figure2"])
    assert f"names 2 runs, such as {FIGURE2}/timed-K4-M1-" in error
    assert "`repro report --runs` lists them" in refused([*REPORT, "--run", "qqq"])
    assert "did you mean 'transformer-K2-M" in refused([*REPORT, "--run", "tranformer-K2-M1"])


def test_a_run_is_found_by_a_part_of_its_id_own_results_first(rounds: Frame, tmp_path: Path):
    run = rounds[(rounds.experiment == "figure2") & (rounds.M == 4)].run.iloc[0]
    for folder in (tmp_path, tmp_path / "reference"):
        shutil.copytree(REFERENCE / FIGURE2, folder / FIGURE2)
    for text in (run, run[3:-2], run.rpartition("-")[2], f"figure2/{run[3:]}", f"{FIGURE2}/{run}"):
        results, found = find_run(text, tmp_path)
        assert (found.id, results.journals[0].root) == (run, tmp_path)


def test_the_recipes_run(
    rounds: Frame, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    page = (ROOT / "docs/cli.md").read_text("utf-8")
    (recipes,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    monkeypatch.chdir(ROOT)
    exec(recipes, {})
    shown = capsys.readouterr().out
    assert "transformer" in shown
    (idle,) = rounds.query("experiment == 'bubble' and K == 4 and M == 16").idle_over_total
    assert f"{idle:.6f}" in shown
