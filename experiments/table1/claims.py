"""Ours for the claims about Table 1: counted at the paper's own sizes, by every reading."""

import pandas as pd

from experiments.table1.accountings import READINGS
from experiments.table1.fits import (
    BYTES_PER_PARAMETER,
    COLUMN,
    FAVOURED,
    UNITS,
    all_fits,
    counted_sizes,
    favoured,
)
from experiments.table1.laws import points, worst
from experiments.table1.runs import DECIMAL_16G, DROPOUT, MEMORY, N_OF, NAME
from repro.claims.cells import cell_id
from repro.claims.claim import Evidence
from repro.harness.frame import select
from repro.harness.results import Results
from repro.paper import table1_claims
from repro.paper.theory import MEMORY_LAWS


def evidence(results: Results) -> dict[str, Evidence]:
    ours: dict[str, Evidence] = {}
    counts = select(counted_sizes(results), reading=[*READINGS, *FAVOURED])
    for _, readings in counts.groupby(COLUMN):
        ours |= _printed_size(readings)
    for _, searches in _searches(results).groupby(COLUMN):
        ours |= _largest(searches)
    return ours | _multiples(favoured(counts)) | _laws(results)


def _counted(value: float, *runs: str) -> Evidence:
    return Evidence(value, "counted", runs, papers_size=True)


def _printed_size(readings: pd.DataFrame) -> dict[str, Evidence]:
    """Parameters, their 12 bytes and the activations of a printed size."""
    usual = favoured(readings).to_dict("records")
    if not usual:
        return {}
    first = usual[0]
    column = cell_id(NAME, first["model"], first["column"])
    parameters = first["cut"].parameters
    memory = BYTES_PER_PARAMETER * parameters / UNITS[first["model"]][1]
    others = readings.loc[readings["id"] != first["id"]]
    dropout = f" and dropout {DROPOUT['attention_dropout']:g} of attention weights"
    by_setting = {
        line["reading"] + (dropout if line["dropout"] else ""): line["activations"]
        for line in others.to_dict("records")
    }
    return {
        f"{column}/parameters": _counted(parameters, first["id"]),
        f"{column}/parameter memory": _counted(memory, first["id"]),
        f"{column}/activations": Evidence(
            first["activations"],
            "counted",
            (first["id"], *others["id"]),
            papers_size=True,
            setting=FAVOURED[0],
            others=by_setting,
            fitted="two slots and M=32 were chosen by these cells",
        ),
    }


def _searches(results: Results) -> pd.DataFrame:
    """The counted searches at the printed N, of 16 GiB and of 16 GB."""
    frame = select(all_fits(results), fidelity="counted", given=False)
    memory = frame["model"].map(MEMORY.get)
    known = (frame["memory"] == memory) | (frame["memory"] == DECIMAL_16G)
    return frame.loc[known & (frame["N"] == frame["model"].map(N_OF.get))]


def _largest(searches: pd.DataFrame) -> dict[str, Evidence]:
    """Parameters of the largest size that fits; 0 where none does."""
    searches = searches.assign(setting=searches["reading"] + searches["unprinted"])
    values = searches.set_index("setting")["parameters"].fillna(0.0).to_dict()
    usual = [*favoured(searches)["setting"]]
    if not usual:
        return {}
    identity = cell_id(NAME, searches["model"].iloc[0], searches["column"].iloc[0], "largest")
    return {
        identity: Evidence(
            values.pop(usual[0]),
            "counted",
            tuple(searches["id"]),
            papers_size=True,
            setting=usual[0],
            others=values,
        )
    }


def _multiples(counts: pd.DataFrame) -> dict[str, Evidence]:
    """How many times the parameters of Naive-1 a printed size has."""
    by_column = counts.set_index(COLUMN)
    ours = {}
    for row in table1_claims():
        pair = [(row.model, f"Pipeline-{row.accelerators}"), (row.model, row.over)]
        if all(column in by_column.index for column in pair):
            large, small = (by_column.at[column, "cut"].parameters for column in pair)
            identity = cell_id(NAME, row.model, row.accelerators, "times")
            runs = (by_column.at[column, "id"] for column in pair)
            ours[identity] = _counted(large / small, *runs)
    return ours


def _laws(results: Results) -> dict[str, Evidence]:
    """Percent by which the paper's law is off at worst, over M, K or N."""
    ours = {}
    for model in UNITS:
        counted = points(results, model, "always")
        if len(counted):
            off = 100 * max(worst(MEMORY_LAWS[0], counted).values())
            identity = cell_id(NAME, model, "memory law")
            ours[identity] = Evidence(off, "counted", tuple(counted["id"]))
    return ours
