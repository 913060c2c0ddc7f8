"""Single layers: seconds as measured, and how far the cost model is off for each micro-batch."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.costs.runs import NAME
from repro.harness.frame import Frame, runs_frame
from repro.harness.results import Results, Run
from repro.harness.schema import CalibrateRound, RooflineRound
from repro.report.style import model_name
from repro.simulate.calibration import LayerTables

LAYERS = "costs_layers"
OFF, OFF_SHEET = "error (%) fitted", "error (%) data sheet"
SHARE = "recompute over F + B"
_TORCH = "-torch"  # ends the name of a profile that is fitted to layers
PREDICTIONS = Path(__file__).parents[2] / "predictions/2026-11-26-layers.json"


def layers(results: Results) -> Frame:
    """A line for each model, number of processes and size: sums over the layers, in ms.

    Medians over rounds. The error is that of F + R + B: by the device that was fitted in the round,
    or, of the one GPU whose first record has none, by profiles whose seconds are in `PREDICTIONS`.
    """
    lines = []
    for line in runs_frame(results, NAME, done=True).to_dict("records"):
        run: Run = line["run"]
        for round_ in run.rounds:
            for found in _sizes(run, round_.record):
                of_run = {"where": line["where"], "model": model_name(run.model), "K": run.K}
                lines.append(of_run | found)
    frame = pd.DataFrame(lines)
    if frame.empty:
        return frame
    of_size = frame.groupby(["where", "model", "K", "n"], sort=False, observed=True)
    return of_size.median(numeric_only=True).reset_index()


def _sizes(run: Run, record: object) -> list[dict[str, Any]]:
    """What a round says of each size; nothing where it timed no layers."""
    fitted: LayerTables | None = None
    if isinstance(record, RooflineRound):
        timed, fitted = record.measured, record.calibration
    else:
        timed = record.calibration if isinstance(record, CalibrateRound) else None
    if timed is None:
        return []
    by_profile = _predicted().get(run.machine, {}).get(run.model, {}) if fitted is None else {}
    lines = []
    for index, n in enumerate(timed.sizes):
        F, R, B = (sum(table[index]) for table in (timed.forward, timed.recompute, timed.backward))
        line = {"n": n, "F (ms)": 1e3 * F, "R (ms)": 1e3 * R, "B (ms)": 1e3 * B, SHARE: R / (F + B)}
        if fitted is not None:
            tables = (fitted.forward, fitted.recompute, fitted.backward)
            line[OFF] = 100 * (sum(sum(table[index]) for table in tables) / (F + R + B) - 1)
        for profile, seconds in by_profile.get(str(n), {}).items():
            column = OFF if profile.endswith(_TORCH) else OFF_SHEET
            line[column] = 100 * (seconds / (F + R + B) - 1)
        lines.append(line)
    return lines


@cache
def _predicted() -> dict[str, Any]:
    """Machine -> model -> examples of a micro-batch -> profile -> seconds."""
    return json.loads(PREDICTIONS.read_text(encoding="utf-8"))
