"""Ours for the claims about Table 2: simulated at the paper's size, measured where GPUs ran it."""

from collections.abc import Callable
from math import nan

from experiments.costs.error import ErrorBar, error_bar
from experiments.table2.predictions import (
    BY_MEMORY,
    SHARE_BY_MEMORY,
    VARIANCE_BY_MEMORY,
    Prediction,
    predictions,
)
from experiments.table2.recorded import HEADLINES, MODELS, at_papers_size, fixed
from experiments.table2.runs import NAME
from repro.claims.cells import cell_id, throughput_id
from repro.claims.claim import Evidence
from repro.harness.results import Results, Run
from repro.paper import table2
from repro.report.compare import rows_of
from repro.report.ratio import over

# Protocols whose mini-batch fits the device -> what of them the paper does not print.
SETTINGS = {
    "amoebanet-d": {
        BY_MEMORY: "layers cut by time",
        SHARE_BY_MEMORY: "layers cut by cumulative share of FLOPs",
        VARIANCE_BY_MEMORY: "layers cut by variance of FLOPs",
    },
    "transformer": {
        HEADLINES["transformer"]: "half of Table 1's widths",
        BY_MEMORY: "Table 1's widths",
    },
}
PRINTED = {(cell.model, cell.K, cell.M) for cell in table2()}
NOT_FITTING = "counted not to fit the device"


def evidence(results: Results) -> dict[str, Evidence]:
    bar = error_bar(results)
    cells = {(cell.model, cell.K, cell.M): cell for cell in predictions(results)}
    ours: dict[str, Evidence] = {}
    for (model, K, M), cell in cells.items():
        if not cell.baseline:
            identity = throughput_id(NAME, model, K, M)
            ours[identity] = _simulated([cell], lambda name, cell=cell: ratio(cell, name), bar)
    for model in MODELS:
        if (model, 8, 32) in cells:
            for name, M in (("K=8 over K=2", 32), ("M=1 constant", 1)):
                pair = [cells[model, 8, M], cells[model, 2, M]]
                ours[cell_id(NAME, model, name)] = _simulated(
                    pair, lambda name, pair=pair: ratio(pair[0], name) / ratio(pair[1], name), bar
                )
    measured: dict[str, Evidence] = {}
    for run in fixed(rows_of(results, experiment=NAME, fidelity="measured", status="done")):
        if (run.K, run.M) == (2, 32):
            identity = cell_id(NAME, run.model, "more micro-batches")
            measured.setdefault(identity, _measured(results, run, M=1))
        is_cell = (run.model, run.K, run.M) in PRINTED and (run.K, run.M) != (2, 1)
        if is_cell and at_papers_size(run):
            identity = throughput_id(NAME, run.model, run.K, run.M)
            measured.setdefault(identity, _measured(results, run, K=2, M=1))
    # A measurement stands before a simulation.
    return ours | measured


def ratio(cell: Prediction, name: str) -> float:
    """The ratio of a cell under a protocol; NaN where it does not fit the device."""
    return nan if cell.fits(name) is False else cell.ratio(name)


def _simulated(
    cells: list[Prediction], value: Callable[[str], float], bar: ErrorBar | None
) -> Evidence:
    """The headline's number, and those of other settings that the paper does not print.

    Args:
        value: protocol -> the number.
    """
    model = cells[0].model
    headline = HEADLINES[model]
    protocol = cells[0].protocols.get(headline)
    if protocol is None:
        return Evidence(nan, "simulated", (), why="not simulated")
    low, high = bar.ends(value(headline)) if bar else (nan, nan)
    runs = [protocol.run(cell.K, cell.M) for cell in cells] + [protocol.run(2, 1)]
    return Evidence(
        value(headline),
        "simulated",
        tuple(dict.fromkeys(run.id for run in runs if run)),
        low,
        high,
        papers_size=protocol.papers_size,
        setting=SETTINGS[model][headline],
        others={
            text: value(name)
            for name, text in SETTINGS[model].items()
            if name != headline and name in cells[0].protocols
        },
        why=NOT_FITTING,
    )


def _measured(results: Results, run: Run, **changed: int) -> Evidence:
    """Throughput over that of the run that differs in K or M, in common rounds."""
    speedup = over(results, run, **changed)
    base = results.baseline(run, **changed)
    return Evidence(
        speedup.value,
        "measured",
        (run.id, base.id) if base else (run.id,),
        speedup.low,
        speedup.high,
        papers_size=at_papers_size(run),
    )
