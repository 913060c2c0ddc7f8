"""Ours for the claims about Table 2: simulated at the paper's size, measured where GPUs ran it."""

from collections.abc import Iterator

import pandas as pd

from experiments.costs.error import with_range
from experiments.table2 import recorded
from experiments.table2.runs import NAME
from repro.claims.all_claims import cell_id, throughput_id
from repro.claims.claim import Evidence
from repro.harness.frame import ratio_of, select
from repro.harness.results import Results, Run
from repro.paper.numbers import table2
from repro.report.compare import NOT_FITTING, rows_of

# Protocols whose mini-batch fits the device -> what of them the paper does not print.
SETTINGS = {
    "amoebanet-d": {
        recorded.BY_MEMORY: "layers cut by time",
        recorded.SHARE_BY_MEMORY: "layers cut by cumulative share of FLOPs",
        recorded.VARIANCE_BY_MEMORY: "layers cut by variance of FLOPs",
    },
    "transformer": {
        recorded.NARROW_BY_MEMORY: "half of Table 1's widths",
        recorded.BY_MEMORY: "Table 1's widths",
    },
}
Place = tuple[int, int]  # K, M
BASE = (2, 1)


def evidence(results: Results) -> Iterator[tuple[str, Evidence]]:
    for model, cells in recorded.simulated_cells(results).groupby("model"):
        if recorded.HEADLINES[str(model)] not in {*cells["protocol"]}:
            continue
        for place in zip(cells["K"], cells["M"], strict=True):
            if place != BASE:
                at = throughput_id(NAME, str(model), *place)
                yield at, _simulated(results, cells, place, BASE)
        for name, M in (("K=8 over K=2", 32), ("M=1 constant", 1)):
            yield cell_id(NAME, model, name), _simulated(results, cells, (8, M), (2, M))
    cells = {(cell.model, cell.K, cell.M) for cell in table2() if (cell.K, cell.M) != BASE}
    for run in rows_of(results, experiment=NAME, fidelity="measured", status="done"):
        if (run.K, run.M) == (2, 32):
            yield cell_id(NAME, run.model, "more micro-batches"), _measured(results, run, M=1)
        if (run.model, run.K, run.M) in cells:
            at = throughput_id(NAME, run.model, run.K, run.M)
            yield at, _measured(results, run, K=2, M=1)


def _simulated(results: Results, cells: pd.DataFrame, above: Place, below: Place) -> Evidence:
    """A quotient of two cells under the headline, and under settings that the paper lacks too."""
    model = cells["model"].iloc[0]
    named, headline = SETTINGS[model], recorded.HEADLINES[model]
    fitting = cells.assign(ratio=cells["ratio"].mask(cells["fits"].eq(False)))
    by_place = fitting.pivot(index="protocol", columns=["K", "M"], values="ratio")
    values = (by_place[above] / by_place[below]).to_dict()
    ours = values.pop(headline)
    runs = select(cells, headline=True).set_index(["K", "M"])
    places = [place for place in dict.fromkeys([above, below, BASE]) if runs.at[place, "done"]]
    spec = runs.at[above, "spec"]
    ranged = {setting: with_range(results, value, spec) for setting, value in values.items()}
    _, *ends = with_range(results, ours, spec)
    return Evidence(
        ours,
        "simulated",
        tuple(runs.at[place, "id"] for place in places),
        *ends,
        is_range=True,
        papers_size=all(recorded.papers_size(runs.at[place, "spec"]) for place in places),
        setting=named[headline],
        others={text: ranged[name] for name, text in named.items() if name in ranged},
        why=NOT_FITTING,
    )


def _measured(results: Results, run: Run, **changed: int) -> Evidence:
    base = results.baseline(run, **changed)
    value, *ends = ratio_of(results, run, base)
    runs = (run.id, base.id) if base else (run.id,)
    return Evidence(value, "measured", runs, *ends, papers_size=recorded.at_papers_size(run))
