"""`repro.results`, `repro results`, and the recipes of docs/cli.md."""

import io
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import repro
from repro.cli.main import main
from repro.harness.frame import ROUND_COLUMNS, Frame

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "results/reference"


@pytest.fixture(scope="module")
def rounds() -> Frame:
    return repro.results(REFERENCE)


def test_every_run_and_round_is_a_row(rounds: Frame):
    assert list(rounds.columns) == list(ROUND_COLUMNS)
    assert not rounds.duplicated(["machine", "scale", "experiment", "run", "round"]).any()
    assert set(rounds.fidelity) >= {"measured", "emulated", "simulated", "counted"}
    wide = rounds[(rounds.experiment == "table3") & (rounds.K > 2) & (rounds.status == "done")]
    assert wide["speedup_vs_k1"].notna().any()


def test_the_command_prints_the_same_rows(rounds: Frame, capsys: pytest.CaptureFixture[str]):
    given = ["results", "--results", str(REFERENCE)]
    assert main([*given, "--csv"]) == 0
    printed = pd.read_csv(io.StringIO(capsys.readouterr().out))
    assert list(printed.columns) == list(ROUND_COLUMNS)
    assert list(printed.run) == list(rounds.run)
    assert printed.step_s.tolist() == pytest.approx(rounds.step_s.tolist(), nan_ok=True)
    assert main(given) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) < 300, "the reason of a status is cut"
    assert len(lines) == 1 + len(rounds.drop_duplicates(["machine", "scale", "run"]))


def test_the_recipes_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    page = (ROOT / "docs/cli.md").read_text("utf-8")
    (recipes,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {}
    exec(recipes, names)
    shown = capsys.readouterr().out
    assert all(model in shown for model in ("amoebanet-d", "transformer"))
    assert f"{3 / 19:.6f}" in shown  # the bubble of K=4, M=16
    assert len(names["stages"]) > 20
