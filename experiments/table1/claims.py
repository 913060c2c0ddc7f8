"""Ours for the claims about Table 1: counted at the paper's own sizes, by every reading."""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from experiments.table1 import fits
from experiments.table1.accountings import READINGS
from experiments.table1.laws import points, worst
from experiments.table1.runs import DROPOUT, NAME
from repro.claims.all_claims import cell_id
from repro.claims.claim import Evidence
from repro.harness.frame import Frame, select
from repro.harness.results import Results
from repro.paper.numbers import table1_claims, torchgpipe
from repro.paper.theory import MEMORY_LAWS


def evidence(results: Results) -> Iterator[tuple[str, Evidence]]:
    counts = select(fits.counted_sizes(results), reading=[*READINGS, *fits.FAVOURED])
    dropout = f" and dropout {DROPOUT['attention_dropout']:g} of attention weights"
    counts["setting"] = counts["reading"] + counts["dropout"].map({True: dropout, False: ""})
    searches = select(fits.all_fits(results), fidelity="counted", given=False)
    searches["largest"] = searches["parameters"].fillna(0.0)
    searches["setting"] = searches["reading"] + searches["unprinted"]
    # Of those at the printed N and memory, or that of 16 GB.
    searches = searches.loc[searches["usual"] | searches["unprinted"].str.endswith("decimal GB")]
    # Another definition of AmoebaNet-D.
    theirs = {row.name[-9:]: row.values["parameters"] for row in torchgpipe("amoebanetd_memory")}
    for line in fits.favoured(counts).to_dict("records"):
        other = theirs.get(line["quoted"])
        memory = fits.BYTES_PER_PARAMETER / fits.UNITS[line["model"]][1]
        for what, factor in (("parameters", 1), ("parameter memory", memory)):
            yield (
                cell_id(NAME, line["model"], line["column"], what),
                _counted(
                    factor * line["cut"].parameters,
                    line["id"],
                    setting="the authors' code",
                    others={"torchgpipe's code": [factor * other]} if other else {},
                ),
            )
    for name, frame in (("activations", counts), ("largest", searches)):
        for _, lines in frame.groupby(fits.COLUMN):
            yield from _by_setting(lines, name)
    yield from _multiples(fits.favoured(counts))
    yield from _laws(results)


def _counted(value: float, *runs: str, **more: Any) -> Evidence:
    return Evidence(value, "counted", runs, papers_size=True, **more)


def _by_setting(lines: Frame, value: str) -> Iterator[tuple[str, Evidence]]:
    """A number of one column with the favoured reading, and by others that could be the paper's."""
    usual = fits.favoured(lines)
    if len(usual):
        lines = pd.concat([usual, lines]).drop_duplicates("id")
        (setting, ours), *others = zip(lines["setting"], lines[value], strict=True)
        identity = cell_id(NAME, lines["model"].iloc[0], lines["column"].iloc[0], value)
        varied = {name: [other] for name, other in others}
        yield identity, _counted(ours, *lines["id"], setting=setting, others=varied)


def _multiples(counts: Frame) -> Iterator[tuple[str, Evidence]]:
    by_column = counts.set_index(fits.COLUMN)
    for row in table1_claims():
        pair = [(row.model, f"Pipeline-{row.accelerators}"), (row.model, row.over)]
        if all(column in by_column.index for column in pair):
            large, small = (by_column.at[column, "cut"].parameters for column in pair)
            identity = cell_id(NAME, row.model, row.accelerators, "times")
            runs = (by_column.at[column, "id"] for column in pair)
            yield identity, _counted(large / small, *runs)


def _laws(results: Results) -> Iterator[tuple[str, Evidence]]:
    """Percent by which the paper's law is off at worst, over M, K or N."""
    for model in fits.UNITS:
        counted = points(results, model, "always")
        if len(counted):
            off = 100 * max(worst(MEMORY_LAWS[0], counted).values())
            ours = Evidence(off, "counted", tuple(counted["id"]))
            yield cell_id(NAME, model, "memory law"), ours
