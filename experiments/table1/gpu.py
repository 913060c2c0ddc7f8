"""Table 1 measured at the paper's own sizes: stages of 8 GB or 16 GiB that share one GPU."""

from collections.abc import Mapping
from math import isnan
from typing import Any

from experiments.table1.fits import COLUMN, all_fits, as_printed, printed, short, table_of
from experiments.table1.runs import CAPPED
from repro.harness.frame import Frame, select
from repro.harness.results import Results
from repro.report.table import EMPTY, Table

# The printed size is the largest one if no size with more than this many times its parameters
# trains. Fixed before anything was measured.
LARGER = 1.1
INFERRED_FROM = "transformer"  # whose printed activations favour M and the two slots


def measured_columns(results: Results) -> Frame:
    fits = all_fits(results)
    fits = fits.loc[fits["group"].str.endswith(CAPPED)]
    place = ["machine", "scale", *COLUMN]
    searches = select(fits, given=False).loc[:, [*place, "size", "parameters"]]
    paper = printed().loc[:, [*COLUMN, "quoted", "parameters"]]
    columns = paper.merge(select(fits, given=True), on=COLUMN, suffixes=("_quoted", ""))
    return columns.merge(searches, how="left", on=place, suffixes=("", "_largest"))


def largest(results: Results) -> Table:
    columns = measured_columns(results)
    lines = columns.to_dict("records")
    table = columns.loc[:, ["where", *COLUMN]]
    table["printed size tried"] = columns["quoted"]
    table["printed size measured"] = [_fate(line) for line in lines]
    table["largest quoted"] = columns["parameters_quoted"].map(as_printed)
    table["largest measured"] = [_largest(line) for line in lines]
    table["verdict"] = [verdict(line) for line in lines]
    return table_of(results, "table1_gpu", table)


def _fate(line: Mapping[str, Any]) -> str:
    if line["largest"]:
        return "trains"
    reasons = [tried.reason for tried in line["fit"].tried if tried.status == "oom"]
    return f"runs out: {reasons[0].split(':')[0]}" if reasons else EMPTY


def _largest(line: Mapping[str, Any]) -> str:
    parameters = line["parameters_largest"]
    return EMPTY if isnan(parameters) else f"{short(parameters)}: {line['size_largest']}"


def verdict(line: Mapping[str, Any]) -> str:
    """What the measurement says about the printed size.

    M and the optimizer's slots were inferred from the cells of one model, for which agreement is a
    fit. The search varies D of AmoebaNet-D at the printed L only.
    """
    if not line["largest"]:
        return "not reproduced: runs out of memory"
    if isnan(line["parameters_largest"]) or line["column"] == "Naive-1":
        return "consistent: trains"
    if line["parameters_largest"] > LARGER * line["parameters_quoted"]:
        return "consistent: trains, but larger ones do too"
    if line["model"] == INFERRED_FROM:
        return "fitted: the largest that trains"
    return "reproduced with what is inferred"
