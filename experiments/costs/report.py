"""How far the cost model is off: predicted beside published and measured steps and memory."""

from dataclasses import replace
from math import expm1, isnan, nan
from typing import Any

import pandas as pd

from experiments.costs.cells import SOURCES, cells
from experiments.costs.error import BARS, bars
from experiments.costs.iterations import ITERATIONS, PREDICTIONS, errors
from experiments.costs.layers import LAYERS, OFF, OFF_SHEET, SHARE, layers
from experiments.costs.runs import ABOUT, GPU, NAME, lingvo_memory, torchgpipe_memory
from repro.harness.error_bars import off
from repro.harness.frame import runs_frame, select
from repro.harness.results import GIB, Results
from repro.report.declared import Shown
from repro.report.framed import framed
from repro.report.style import model_name
from repro.report.table import Cell, Table

GB = 10**9
THROUGHPUT, RATIO = "error (%) throughput", "error (%) ratio"
TEXTBOOK = "error (%) ratio, textbook"
ERRORS = {THROUGHPUT: "absolute", RATIO: "ratio", TEXTBOOK: "textbook"}
QUOTED, COUNTED = "activations (GiB) quoted", "activations (GiB) counted"
SHOWN = Shown(
    NAME,
    f"source | model | {THROUGHPUT} | {RATIO} | {TEXTBOOK}",
    lines={"model": ("median error", "worst error")},
)


def tables(results: Results) -> list[Table]:
    return [
        speed(results),
        ranges(results),
        single_layers(results),
        iterations(results),
        memory(results),
    ]


def speed(results: Results) -> Table:
    every = cells(results)
    parts = [_summaries("all", every.loc[every["source"] != "rehearsal"])]
    for letter, source in reversed(SOURCES.items()):
        of_source = select(every, source=letter)
        parts = [_cells(source, of_source), _summaries(source, of_source), *parts]
    table = pd.concat([part for part in parts if len(part)] or [pd.DataFrame()])
    forms = {f"examples/s {fidelity}": ".1f" for fidelity in ("quoted", "measured", "simulated")}
    return framed(results, NAME, table, ABOUT, forms=forms)


def ranges(results: Results) -> Table:
    """The ranges that simulated numbers of other tables have, by setting."""
    frame = bars(results)
    forms = dict.fromkeys(frame.columns[2:], ".0f")
    return framed(results, BARS, frame, ABOUT, forms=forms)


def single_layers(results: Results) -> Table:
    """How far the curve of efficiency is off where it was fitted, and a data sheet beside it."""
    form = dict.fromkeys((OFF, OFF_SHEET), "+.0f") | {SHARE: ".2f"}
    forms = form | dict.fromkeys(("F (ms)", "R (ms)", "B (ms)"), ".1f")
    return framed(results, LAYERS, layers(results), ABOUT, forms=forms)


def iterations(results: Results) -> Table:
    """How far predicted iterations of vTrain are off, by part; beside two simpler predictions."""
    frame = errors()
    forms = dict.fromkeys(frame.columns[3:], ".1f")
    origin = f"Frozen in predictions/{PREDICTIONS.name}."
    table = framed(results, ITERATIONS, frame, ABOUT, forms=forms, origin=origin)
    return replace(table, of_file=True)


def _cells(source: str, frame: pd.DataFrame) -> pd.DataFrame:
    has_unit, is_published = frame["source"] != "b", frame["fidelity"] == "simulated"
    both_rules = frame["group"].astype(str).str.endswith(GPU)
    table = pd.DataFrame({"source": source}, frame.index)
    if frame.empty:
        return table
    table["model"] = frame["model"].map(model_name) + (", " + frame["remat"]).where(both_rules, "")
    for name in "KMN":
        table[name] = frame[name].astype(object)
    table["run"] = frame["run"]
    table["examples/s quoted"] = frame["real"].where(has_unit & is_published)
    table["examples/s measured"] = frame["real"].where(has_unit & ~is_published)
    table["examples/s simulated"] = frame["predicted"]
    for column, name in ERRORS.items():
        table[column] = [_percent(error, "+.0f") for error in frame[name]]
    table.loc[frame["is_base"].astype(bool), RATIO] = Cell(text="base")
    return table


def _summaries(source: str, frame: pd.DataFrame) -> pd.DataFrame:
    sizes = {column: frame[name].dropna().map(off) for column, name in ERRORS.items()}
    if not any(map(len, sizes.values())):
        return pd.DataFrame()
    lines = []
    for which, of_sizes in {"median": pd.Series.median, "worst": pd.Series.max}.items():
        line: dict[str, Any] = {"source": source, "model": f"{which} error"}
        for column, of in sizes.items():
            line[column] = _percent(expm1(of_sizes(of)), ".0f")
        lines.append(line)
    return pd.DataFrame(lines)


def _percent(error: float, form: str) -> Cell:
    return Cell() if isnan(error) else Cell(100 * error, format(100 * error, form))


def memory(results: Results) -> Table:
    """Counted memory beside torchgpipe's table, and whether Lingvo's settings fit."""
    recorded = list(runs_frame(results, NAME, done=True)["run"])
    lines = []
    published = [*torchgpipe_memory(), *((spec, {}) for spec in lingvo_memory())]
    for spec, quoted in published:
        for run in (run for run in recorded if run.spec == spec):
            activations = quoted.get("peak_activation_gib") or nan
            counted = sum(run.peak_gib_per_stage) - (quoted.get("model_memory_gib") or nan)
            modelled = run.rounds[-1].modelled
            fullest, device = run.peak_gib_max * GIB, (modelled and modelled.memory) or nan
            sizes = [f"{name}={spec.model_args[name]}" for name in "LD" if name in spec.model_args]
            line = {
                "source": "torchgpipe" if quoted else "Lingvo",
                "model": ", ".join([model_name(run.model), *sizes]),
                "K": run.K,
                "optimizer": spec.optimizer,
                QUOTED: activations,
                COUNTED: counted,
                "error (%)": 100 * (counted / activations - 1),
                "fullest stage (GB) counted": fullest / GB,
                "device (GB)": device / GB,
                "fits": "yes" if fullest <= device else "no",
            }
            lines.append(line)
    forms = {"error (%)": "+.0f", "device (GB)": ".0f"}
    return framed(results, "costs_memory", pd.DataFrame(lines), ABOUT, forms=forms)
