"""`repro.results`, `repro report` of runs, and the recipes of docs/cli.md."""

import re
from pathlib import Path
from typing import Any

import pytest

import repro
from repro.cli.main import main
from repro.harness.frame import Frame

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "results/reference"
REPORT = ["report", "--results", str(REFERENCE)]


@pytest.fixture(scope="module")
def runs() -> Frame:
    return repro.results(REFERENCE)


def test_every_run_is_a_row(runs: Frame):
    assert not runs.duplicated(["machine", "scale", "experiment", "run"]).any()
    assert set(runs.fidelity) >= {"measured", "emulated", "simulated", "counted"}
    wide = runs[(runs.experiment == "two_gpu_demo") & (runs.fidelity == "measured")]
    assert wide[wide.K == 2]["speedup_vs_k1"].notna().any()


def test_runs_are_listed_by_experiment_and_one_by_one(runs: Frame, capfd, refused: Any):
    assert main([*REPORT, "--runs"]) == 0
    lines = [line.split() for line in capfd.readouterr().out.splitlines()]
    assert len(lines) < 40, "one screen"
    counts = {tuple(line[:3]): int(line[3]) for line in lines if line[3:4] and line[3].isdigit()}
    assert counts == runs.groupby(["machine", "scale", "experiment"]).size().to_dict()

    assert main([*REPORT, "--runs", "advise", "figure2"]) == 0
    _, _, header, *lines = capfd.readouterr().out.splitlines()
    columns = [header.split().index(name) for name in ("run", "experiment", "K", "M")]
    shown = runs[runs.experiment.isin(["advise", "figure2"])]
    expected = shown[["run", "experiment", "K", "M"]].astype(str).to_numpy().tolist()
    assert [[line.split()[at] for at in columns] for line in lines] == expected
    error = refused([*REPORT, "--runs", "figur2"])
    assert "--runs figur2: recorded are " in error
    assert "did you mean 'figure2'" in error


def test_the_recipes_run(
    runs: Frame, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    page = (ROOT / "docs/cli.md").read_text("utf-8")
    (recipes,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    monkeypatch.chdir(ROOT)
    exec(recipes, {})
    shown = capsys.readouterr().out
    assert "transformer" in shown
    (idle,) = runs.query("experiment == 'bubble' and K == 4 and M == 16").idle_over_total
    assert f"{idle:.6f}" in shown
