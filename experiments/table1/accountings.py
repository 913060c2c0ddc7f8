"""Which 12 bytes a parameter has, and which M: the printed activations against four counts.

A reading is an accounting (`runs.ACCOUNTINGS`) with an M. It explains a model's printed
activations if it is close to every one of them.
"""

from typing import Any

import pandas as pd

from experiments.table1.fits import COLUMN, all_fits, counted_sizes, table_of
from experiments.table1.laws import HOLDS
from experiments.table1.runs import ACCOUNTINGS, COUNTED_M, DROPOUT
from repro.harness.frame import select
from repro.harness.results import Results
from repro.report.style import model_name
from repro.report.table import EMPTY, Cell, Table

CLOSE = HOLDS  # how far off an activation may be that is explained: as far as where a law holds
READINGS = [f"{slots}, M={M}" for slots in ACCOUNTINGS.values() for M in COUNTED_M]
MEDIAN = "median difference"
WITH_DROPOUT = f"median, attention dropout {DROPOUT['attention_dropout']:g}"


def accountings(results: Results) -> Table:
    """A line for each column of Table 1, summaries for each model; three cells for each reading.

    Naive-1 has no line: no reading comes near its activations.
    """
    counts = select(counted_sizes(results), reading=READINGS)
    without = select(counts, dropout=False)
    table = without.drop_duplicates(COLUMN).set_index(COLUMN)[["peak_activation_gb"]]
    table.columns = ["activations quoted"]
    searches = select(all_fits(results), fidelity="counted", usual=True, given=False, unprinted="")
    for name in READINGS:
        lines = select(without, reading=name).set_index(COLUMN)
        table[f"{name} activations, counted"] = lines["activations"]
        table[f"{name} difference"] = lines["difference"]
        found = select(searches, reading=name).set_index(COLUMN)
        table[f"{name} largest, counted"] = found["size"]
    summaries = [
        {"model": model, "column": title} | _medians(lines)
        for title, dropout in ((MEDIAN, False), (WITH_DROPOUT, True))
        for model, lines in select(counts, dropout=dropout).groupby("model")
    ]
    table = pd.concat([table.reset_index(), pd.DataFrame(summaries)])
    table = table.sort_values("model", kind="stable")
    forms = {"activations quoted": "g"} | {f"{name} difference": "+.1%" for name in READINGS}
    text = favoured_reading(without)
    return table_of(results, "table1_accountings", table, forms=forms, favoured=text)


def differences(lines: pd.DataFrame) -> pd.DataFrame:
    off = lines.assign(off=lines["difference"].abs()).groupby("reading")
    return off.agg(median=("off", "median"), max=("off", "max"))


def _medians(lines: pd.DataFrame) -> dict[str, Any]:
    medians = differences(lines)["median"]
    row = {f"{name} difference": Cell(value, f"{value:.1%}") for name, value in medians.items()}
    return row | {f"{name} largest, counted": EMPTY for name in medians.index}


def favoured_reading(counts: pd.DataFrame) -> str:
    """Which reading the printed activations favour for each model, and whether they tell M."""
    clauses, nearest = [], []
    for model, lines in counts.groupby("model"):
        if len(lines) < len(READINGS) * len({*lines["column"]}):
            continue
        name, off = model_name(str(model)), differences(lines)
        close = off.loc[off["max"] <= CLOSE, "median"]
        if not len(close):
            clauses.append(f"no reading is within {CLOSE:.0%} of every printed cell of {name}")
            continue
        clauses.append(
            f"of those within {CLOSE:.0%} of every printed cell of {name}, {close.idxmin()} is "
            f"favoured by its median difference of {close.min():.1%}"
        )
        of_slots = off["median"].groupby(lambda reading: reading.split(", ")[0]).idxmin()
        found = [reading.split(", ") for reading in of_slots]
        if len({M for _, M in found}) > 1:
            nearest += [f"{M} with {slots}" for slots, M in found]
    if nearest:
        clauses.append(f"M is not identified, since the nearest is {' and '.join(nearest)}")
    text = "; ".join(clauses) or "not every reading has been counted"
    return f"{text[0].upper()}{text[1:]}."
