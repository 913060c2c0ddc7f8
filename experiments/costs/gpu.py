"""Behind part (d) of the costs: single stages on a GPU, and what re-materialization costs there."""

import pandas as pd

from experiments.costs.cells import on_gpus
from experiments.costs.runs import ABOUT, NAME
from repro.harness.frame import ratios, runs_frame, select
from repro.harness.results import Results
from repro.harness.schema import CalibrateRound
from repro.report.framed import RATIO, framed, with_interval
from repro.report.style import model_name
from repro.report.table import Table

KINDS = {"F": "forward", "R": "recompute", "B": "backward"}


def stages(results: Results) -> Table:
    lines = []
    for measured, simulated, _ in on_gpus(runs_frame(results, NAME, done=True)):
        timed = next((r for r in measured["record"] if isinstance(r, CalibrateRound)), None)
        for line in simulated.loc[simulated["K"] > 1].to_dict("records"):
            record = line["record"]
            if timed is None or record.modelled is None:
                continue
            costs = timed.calibration.stages(record.balance, line["N"] // line["M"])
            for stage in range(line["K"]):
                cells = {}
                for letter, kind in KINDS.items():
                    real = getattr(costs, kind)[stage]
                    predicted = getattr(record.modelled.stages, kind)[stage]
                    cells[f"{letter} (ms) measured"] = 1e3 * real
                    cells[f"{letter} (ms) simulated"] = 1e3 * predicted
                    cells[f"{letter} (ms) error (%)"] = 100 * (predicted / real - 1)
                lines.append(
                    {"where": line["where"], "model": line["model"], "stage": stage, **cells}
                )
    table = pd.DataFrame(lines)
    if len(table):
        table["model"] = table["model"].map(model_name)
    forms = {f"{letter} (ms) error (%)": "+.0f" for letter in KINDS}
    return framed(results, "costs_stages", table, ABOUT, forms=forms, keep_where=True)


def recomputation(results: Results) -> Table:
    """The same step with and without re-materialization, on one GPU."""
    frame = runs_frame(results, NAME, done=True)
    runs = [select(measured, remat="always", task="train") for measured, _, _ in on_gpus(frame)]
    table = pd.concat(runs).loc[:, ["where", "model", "M", "run"]]
    over = ratios(results, table, checkpoint="never")
    table["model"] = table["model"].map(model_name)
    column = "throughput over never recomputed"
    table = with_interval(table, column, over.itertuples(index=False, name=None))
    # The part of the step that is not there without recomputation.
    shares = 100 * (1 - over[["ratio", "high", "low"]])
    table = with_interval(table, "share of the step (%)", shares.itertuples(index=False, name=None))
    forms = {column: RATIO, "share of the step (%)": ".1f"}
    return framed(results, "costs_recompute", table, ABOUT, forms=forms, keep_where=True)
