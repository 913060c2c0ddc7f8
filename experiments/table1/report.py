"""Table 1: the largest model that fits, quoted beside counted at the same size and measured small.

The paper's memory cells are sums over all accelerators: 12 bytes a parameter, and peak activations.
"""

from collections.abc import Iterator, Mapping
from math import isnan
from typing import Any

import pandas as pd

from experiments.table1 import figures as drawn
from experiments.table1 import fits
from experiments.table1.accountings import accountings
from experiments.table1.claims import evidence  # noqa: F401
from experiments.table1.fits import COLUMN, as_printed, short
from experiments.table1.laws import laws
from experiments.table1.runs import ABOUT as ABOUT  # the page finds its words here
from experiments.table1.runs import ACCOUNTINGS, CAPPED, DECIMAL_16G, NAME, OPTIMIZER
from repro.harness.frame import Frame, select
from repro.harness.results import Results
from repro.harness.spec import UNLIMITED_MEMORY
from repro.report.compare import beside_paper
from repro.report.declared import Shown
from repro.report.figures import Picture
from repro.report.table import EMPTY, Table

BASE = "Pipeline-1"  # the column that others are divided by
# The printed size is the largest one if no size with more than this many times its parameters
# trains. Fixed before anything was measured.
LARGER = 1.1
INFERRED_FROM = "transformer"  # whose printed activations favour M and the two slots
SHOWN = Shown(
    NAME,
    "model | column | largest quoted | largest counted | parameters quoted | parameters "
    "counted | largest why",
    figure="table1_kinds",
)


def tables(results: Results) -> list[Table]:
    made = [allocator_check(results), measured_at_size(results)]
    if not beside_paper(results, NAME):
        return made
    of_paper = [main(results), accountings(results), memory(results)]
    return [*of_paper, varied(results), laws(results), *made]


def figures(results: Results) -> Iterator[Picture]:
    if beside_paper(results, NAME):
        yield "kinds", drawn.kinds(results), {}


def main(results: Results) -> Table:
    paper = fits.printed().set_index(COLUMN)
    found = fits.all_fits(results)
    counted = fits.favoured(found).set_index(COLUMN)
    sizes, searches = select(counted, is_printed=True), select(counted, given=False)
    small = select(found, fidelity="measured", given=False)
    small = small.loc[~small["group"].str.endswith(CAPPED)].drop_duplicates(COLUMN)
    small = small.set_index(COLUMN)
    paper["K"] = paper["accelerators"]
    stages = pd.concat([paper[["K"]], small[["K"]]]).reset_index().drop_duplicates(COLUMN)
    lines = stages.sort_values(["model", "K", "column"]).loc[:, COLUMN]
    largest = searches["parameters"].dropna()
    # How much of a device's memory the printed size takes, where it is not the largest.
    fate = {True: "does not fit", False: "leaves room"}
    why = sizes["share"].map(lambda share: f"printed size {fate[share > 1]} ({share:.0%})")
    columns = {
        "largest quoted": paper["quoted"],
        "largest counted": searches["size"],
        "largest measured, small": small["size"],
        "largest why": why.mask(paper["quoted"].eq(searches["size"]), "as printed"),
        "parameters quoted": paper["parameters"].map(as_printed),
        "parameters counted": largest.map(short),
    }
    for name, parameters in (("quoted", paper["parameters"]), ("counted", largest)):
        over_base = parameters.div(parameters.xs(BASE, level="column"), level="model")
        # A smaller model has none.
        shown = over_base.loc[over_base >= 1].map("{:.1f}x".format)
        columns[f"parameters over {BASE}'s {name}"] = shown
    table = lines.join(pd.DataFrame(columns), on=COLUMN).fillna(EMPTY)
    return fits.table_of(results, NAME, table)


def memory(results: Results) -> Table:
    sizes = fits.favoured(fits.counted_sizes(results))
    unit = sizes["model"].map(lambda model: fits.UNITS[model][1])
    quoted, counted = sizes["parameters_quoted"], sizes["cut"].map(lambda cut: cut.parameters)
    # Where the two memory cells of a column are printed in each other's place, the activations, and
    # not the parameter memory, are 12 bytes a parameter.
    cells = sizes[["parameter_memory_gb", "peak_activation_gb"]]
    off = (cells.mul(unit / quoted / fits.BYTES_PER_PARAMETER, axis="index") - 1).abs() < 0.01
    swapped = off["peak_activation_gb"] & ~off["parameter_memory_gb"]
    of_parameters = cells["parameter_memory_gb"].mask(swapped, cells["peak_activation_gb"])
    totals = sizes["cut"].map(lambda cut: [stage.total for stage in cut.stages])
    table = sizes[COLUMN].assign(size=sizes["quoted"])
    table["parameters quoted"] = quoted.map(as_printed)
    table["parameters counted"] = counted.map("{:,}".format)
    table["12 bytes each quoted"] = sizes["parameter_memory_gb"].map("{:g}".format)
    table["12 bytes each counted"] = _in_units(sizes, fits.BYTES_PER_PARAMETER * counted)
    table["bytes of a parameter quoted"] = (of_parameters * unit / quoted).map("{:.1f}".format)
    table["fullest stage counted"] = _in_units(sizes, totals.map(max))
    table["emptiest stage counted"] = _in_units(sizes, totals.map(min))
    return fits.table_of(results, f"{NAME}_memory", table)


def _in_units(sizes: Frame, counts: Frame) -> list[str]:
    units = [fits.UNITS[model] for model in sizes["model"]]
    return [f"{size / unit:.2f} {name}" for size, (name, unit) in zip(counts, units, strict=True)]


def varied(results: Results) -> Table:
    """The largest model against what is not printed: attention, N of Naive-1, the unit of 16 G."""
    frame = select(fits.all_fits(results), fidelity="counted", given=False)
    is_favoured = frame["reading"].isin(fits.FAVOURED) | (frame["memory"] == DECIMAL_16G)
    lines = []
    for fit in frame.loc[is_favoured].itertuples():
        slots, passes = fit.reading.split(", ")
        others = "" if slots == ACCOUNTINGS[OPTIMIZER] else f", {slots}"
        more = f": {short(fit.parameters)}" if fit.largest else ""
        setting = f"N={fit.N}, {passes}{others}{fit.unprinted}"
        lines.append([fit.model, setting, fit.K, fit.size + more])
    long = pd.DataFrame(lines, columns=["model", "setting", "K", "size"])
    table = long.pivot_table("size", ["model", "setting"], "K", aggfunc="first", sort=False)
    table = table.sort_index(axis="columns").add_prefix("K=").reset_index()
    return fits.table_of(results, f"{NAME}_varied", table.fillna(EMPTY))


def allocator_check(results: Results) -> Table:
    """Each stage of the sizes that were trained: bytes counted, and by the allocator's events."""
    trained = select(fits.all_fits(results), fidelity="measured", memory=UNLIMITED_MEMORY)
    lines = [
        [fit.model, fit.K, fit.M, fit.remat, stage, counted, *tried.allocator_bytes[stage][:2]]
        for fit in trained.itertuples()
        for tried in fit.fit.tried
        for stage, counted in enumerate(tried.counted_bytes if tried.allocator_bytes else ())
    ]
    columns = ["model", "K", "M", "checkpoint", "stage", "counted", "tensors", "allocated"]
    stages = pd.DataFrame(lines, columns=columns)
    # `tensors` is without, `allocated` with the workspace of kernels.
    workspace = stages["allocated"] - stages["tensors"]
    table = stages[columns[:5]]
    sizes = {"counted": stages["counted"], "measured": stages["tensors"]}
    for name, size in (sizes | {"kernels' workspace": workspace}).items():
        table[f"{name}, KiB"] = (size / 1024).map("{:,.1f}".format)
    over = stages["counted"] / stages["tensors"]
    table["counted over measured"] = over.map("{:.4f}".format)
    return fits.table_of(results, f"{NAME}_check", table)


def measured_at_size(results: Results) -> Table:
    """The paper's own sizes, measured: stages of 8 GB or 16 GiB that share one GPU."""
    frame = fits.all_fits(results)
    frame = frame.loc[frame["group"].str.endswith(CAPPED)]
    place = ["machine", "scale", *COLUMN]
    searches = select(frame, given=False).loc[:, [*place, "size", "parameters"]]
    paper = fits.printed().loc[:, [*COLUMN, "quoted", "parameters"]]
    columns = paper.merge(select(frame, given=True), on=COLUMN, suffixes=("_quoted", ""))
    columns = columns.merge(searches, how="left", on=place, suffixes=("", "_largest"))
    lines = columns.to_dict("records")
    table = columns.loc[:, ["where", *COLUMN]]
    table["printed size tried"] = columns["quoted"]
    table["printed size measured"] = [_fate(line) for line in lines]
    table["largest quoted"] = columns["parameters_quoted"].map(as_printed)
    table["largest measured"] = [_largest(line) for line in lines]
    table["verdict"] = [verdict(line) for line in lines]
    return fits.table_of(results, f"{NAME}_gpu", table)


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
