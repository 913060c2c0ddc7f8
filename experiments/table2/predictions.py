"""Table 2 predicted: every cell beside the paper's and beside two formulas that know no device.

Ratios are over K=2, M=1. The headline is the protocol that could have run on the paper's devices:
the largest mini-batch that is counted to fit each cell. The others are comparisons, and their cells
that do not fit earn no verdict.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from math import isnan, nan

from experiments.costs.error import ErrorBar, meaning, with_error
from experiments.table2.recorded import (
    CAUSES,
    CUMULATIVE_SHARE,
    HEADLINES,
    MINIMUM_VARIANCE,
    MODELS,
    TOLERANCE,
    Protocol,
    places,
    protocol,
    quoted,
    sizes,
    titled,
)
from experiments.table2.runs import NAME
from repro.claims.all_claims import verdict_on
from repro.claims.cells import throughput_id
from repro.claims.claim import Evidence
from repro.harness.results import Results
from repro.paper import theory
from repro.report.grid import Cell, Column, amount, declared, plain
from repro.report.style import model_name
from repro.report.table import EMPTY, Table, number

UPDATE = "update"
CONTROLLED = "controlled"
# Protocols with one N for all cells, which compare schedules and cuts -> their names in tables.
COMPARISONS = {
    CONTROLLED: "one N, cut by time",
    CUMULATIVE_SHARE: "one N, cumulative share",
    MINIMUM_VARIANCE: "one N, minimum variance",
}
BY_MEMORY = "by memory"
SHARE_BY_MEMORY = "cumulative share, by memory"
VARIANCE_BY_MEMORY = "minimum variance, by memory"
# Comparisons that are also shown under a bound of what a compiler may do.
FUSED = tuple(
    (protocol, bound)
    for protocol in (CONTROLLED, CUMULATIVE_SHARE)
    for bound in ("fused", "fused and folded")
)
DOES_NOT_FIT = "does not fit"
NOT_FITTING = "*"


@dataclass(frozen=True)
class Prediction:
    """One cell of the paper; every number is a ratio over K=2, M=1.

    Attributes:
        protocols: those of the model that were run, by name.
    """

    model: str
    K: int
    M: int
    protocols: dict[str, Protocol]

    @property
    def baseline(self) -> bool:
        return (self.K, self.M) == (2, 1)

    @property
    def quoted(self) -> float:
        return quoted(self.model, self.K, self.M)

    def ideal(self, form: theory.Form) -> float:
        """The closed form at one N; "plain" is the textbook's, from K M / (M + K - 1)."""
        return theory.speedup_over_k2m1(self.K, self.M, form)

    @property
    def headline(self) -> Protocol | None:
        """The protocol that could have run; None where it was not simulated."""
        return self.protocols.get(HEADLINES[self.model])

    def ratio(self, name: str) -> float:
        """The ratio under a protocol; NaN where it was not run or nothing fits."""
        found = self.protocols.get(name)
        return found.ratio(self.K, self.M) if found else nan

    def bound(self, name: str, bound: str) -> float:
        """The ratio under a protocol with a bound of the cost model, such as "fused"."""
        found = self.protocols.get(name)
        return found.bound_ratio(bound, self.K, self.M) if found else nan

    def fits(self, name: str) -> bool | None:
        """Whether a cell and the one that it is divided by fit the device; None if not known."""
        found = self.protocols.get(name)
        if found is None:
            return None
        both = (found.fits(self.K, self.M), found.fits(2, 1))
        return None if None in both else all(both)

    @property
    def predicted(self) -> float:
        return self.ratio(HEADLINES[self.model])

    @property
    def gap(self) -> float:
        """Predicted over quoted, minus 1."""
        return self.predicted / self.quoted - 1


@lru_cache(maxsize=1)
def predictions(results: Results) -> list[Prediction]:
    cells = []
    for model in MODELS:
        names = (
            *COMPARISONS,
            BY_MEMORY,
            SHARE_BY_MEMORY,
            VARIANCE_BY_MEMORY,
            HEADLINES[model],
        )
        ran = {name: found for name in names if (found := protocol(results, model, name))}
        if ran:
            cells += [Prediction(model, K, M, ran) for K, M in places(model)]
    return cells


def tables(
    cells: list[Prediction], bar: ErrorBar | None, ours: Mapping[str, Evidence]
) -> list[Table]:
    """The predictions, the other protocols, and the causes; none before a simulation.

    Args:
        bar: error of the cost model; None where it is not known.
    """
    return [main(cells, bar, ours), others(cells, bar), causes(cells)] if cells else []


HEAD: list[Column[Prediction]] = [
    Column("model", lambda cell: Cell(cell.model, model_name(cell.model))),
    Column("K", lambda cell: plain(cell.K)),
    Column("M", lambda cell: plain(cell.M)),
]
QUOTED: Column[Prediction] = Column("quoted", lambda cell: Cell(cell.quoted, f"{cell.quoted:g}"))
IDEAL: Column[Prediction] = Column("ideal", lambda cell: amount(cell.ideal("early")))


def main(cells: list[Prediction], bar: ErrorBar | None, ours: Mapping[str, Evidence]) -> Table:
    def verdict(cell: Prediction) -> Cell:
        identity = throughput_id(NAME, cell.model, cell.K, cell.M)
        return plain("baseline" if cell.baseline else verdict_on(identity, ours.get(identity)))

    columns: list[Column[Prediction]] = [
        *HEAD,
        QUOTED,
        Column("textbook", lambda cell: amount(cell.ideal("plain"))),
        IDEAL,
        Column(
            "predicted, simulated",
            lambda cell: with_error(cell.predicted, None if cell.baseline else bar),
            "predicted",
            ends=("predicted: low", "predicted: high"),
        ),
        Column("N", _headline_N),
        Column("gap", _gap),
        Column("verdict", verdict),
    ]
    headlines = [cell.headline for cell in cells if cell.headline]
    note = (
        "Throughput over that of K=2, M=1; predicted with the largest mini-batch that is counted "
        f"to fit each cell: {sizes(headlines)}. Textbook is K M / (M + K - 1), ideal recomputes "
        f"early, and consistent is within {TOLERANCE:.0%}{meaning(bar)}."
    )
    title = titled("Table 2 predicted: quoted against simulated", headlines)
    return declared("table2_predictions", title, note, cells, columns, NAME)


def _headline_N(cell: Prediction) -> Cell:
    N = cell.headline.N(cell.K, cell.M) if cell.headline else None
    return Cell(N, str(N or EMPTY))


def _gap(cell: Prediction) -> Cell:
    hidden = cell.baseline or isnan(cell.gap)
    return Cell(cell.gap, EMPTY if hidden else f"{100 * cell.gap:+.0f} %")


def others(cells: list[Prediction], bar: ErrorBar | None) -> Table:
    """The same cells under every other protocol, marked where they do not fit the device."""
    names = dict.fromkeys(name for cell in cells for name in cell.protocols)
    columns: list[Column[Prediction]] = [*HEAD, QUOTED]
    for name in names:
        columns.append(Column(COMPARISONS.get(name, name), partial(_ratio, name, bar)))
        columns.append(Column("", partial(_fits, name), f"{COMPARISONS.get(name, name)}: fits"))
    columns += [
        Column(f"{COMPARISONS[name]}, all else {bound}", partial(_bound, name, bound))
        for name, bound in FUSED
    ]
    shown = [found for cell in cells for found in cell.protocols.values()]
    note = (
        f"Simulated throughput over that of K=2, M=1 of the same protocol; {NOT_FITTING} where "
        "the cell or the one it is divided by is counted not to fit the device. Fused: every "
        "operator that multiplies no matrices takes no time; folded: a convolution's kernel is one "
        f"product with its channels, which pads less{meaning(bar)}."
    )
    title = titled("Table 2 under other protocols: mini-batch, cut and fusion", shown)
    return declared("table2_protocols", title, note, cells, columns, NAME)


def _ratio(name: str, bar: ErrorBar | None, cell: Prediction) -> Cell:
    """With the error of the cost model; without it where the cell earns no verdict anyway."""
    ratio = cell.ratio(name)
    mark = NOT_FITTING if cell.fits(name) is False else ""
    if isnan(ratio):
        return Cell(ratio, "nothing fits" if mark else EMPTY)
    if mark or cell.baseline:
        return Cell(ratio, number(ratio) + mark)
    return Cell(ratio, with_error(ratio, bar).text)


def _fits(name: str, cell: Prediction) -> Cell:
    fits = cell.fits(name)
    return Cell(None if fits is None else int(fits))


def _bound(name: str, bound: str, cell: Prediction) -> Cell:
    ratio = cell.bound(name, bound)
    mark = NOT_FITTING if cell.fits(name) is False else ""
    return Cell(ratio, EMPTY if isnan(ratio) else number(ratio) + mark)


def causes(cells: list[Prediction]) -> Table:
    simulated = [cell for cell in cells if not isnan(cell.ratio(CONTROLLED))]
    columns: list[Column[Prediction]] = [
        *HEAD,
        IDEAL,
        *(Column(name, partial(_cause, name)) for name in (*CAUSES.values(), UPDATE)),
        Column("simulated", lambda cell: amount(cell.ratio(CONTROLLED))),
        Column("left", lambda cell: _difference(cell.quoted - cell.ratio(CONTROLLED))),
        QUOTED,
    ]
    shown = [cell.protocols[CONTROLLED] for cell in simulated]
    note = (
        "Ratios over K=2, M=1 at one N; each cause is what it adds to the ratio on top of those "
        "left of it, with the best cut for what counts then, so that a line adds up to quoted. A "
        "cause that slows the base more than the cell raises the ratio."
    )
    title = titled(
        "Table 2 at one N, a comparison: from the ideal to the quoted ratio, cause by cause", shown
    )
    return declared("table2_causes", title, note, simulated, columns, NAME)


def cause_differences(cell: Prediction) -> dict[str, float]:
    """What each cause adds to the ratio, one after the other, from the ideal to the controlled."""
    controlled = cell.protocols[CONTROLLED]
    differences = {}
    so_far = cell.ideal("early")
    for cause, name in CAUSES.items():
        ratio = controlled.cause_ratio(cause, cell.K, cell.M)
        differences[name] = ratio - so_far
        so_far = ratio
    differences[UPDATE] = cell.ratio(CONTROLLED) - so_far
    return differences


def _cause(name: str, cell: Prediction) -> Cell:
    return _difference(cause_differences(cell)[name])


def _difference(value: float) -> Cell:
    return Cell(value, EMPTY if isnan(value) else f"{value:+.2f}")
