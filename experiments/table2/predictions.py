"""Table 2 predicted and held against the paper's: the gap of each cell, cause by cause.

Ratios are over K=2, M=1; a cause is the difference that it makes to the ratio, so causes add up
from the uniform pipeline's closed form to the prediction. Models of another size than the paper's
get no verdict.
"""

from dataclasses import dataclass
from functools import partial
from math import isnan, nan

from experiments.table2.recorded import (
    CAUSES,
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
from repro.harness.results import Results
from repro.paper import theory
from repro.report.compare import rows_of
from repro.report.grid import Cell, Column, amount, declared, plain
from repro.report.style import model_name
from repro.report.table import EMPTY, Table, number

UPDATE = "update"
# Explanations of what is left -> their protocol.
EXPLANATIONS = {"batch": "by memory", "cut by parameters": "by parameters"}
_HALF = 0.5  # of the gap: what an explanation must close to be named at all


@dataclass(frozen=True)
class Prediction:
    """One cell; every number is a ratio over K=2, M=1.

    Attributes:
        quoted: the paper's.
        ideal: of equal layers, recomputing early.
        predicted: simulated, the controlled protocol.
        causes: from ideal to predicted, one after the other; their sum is the difference.
        others: of each explanation, its ratio minus the predicted; NaN where it was not run or
            nothing fits.
        whole: explanations whose protocol could run every cell of the model; no other earns a
            verdict.
        papers_size: whether what was simulated is of the paper's size.
    """

    model: str
    K: int
    M: int
    quoted: float
    ideal: float
    predicted: float
    causes: dict[str, float]
    others: dict[str, float]
    whole: tuple[str, ...] = tuple(EXPLANATIONS)
    papers_size: bool = True

    @property
    def baseline(self) -> bool:
        """Whether it is the cell that all others are divided by."""
        return (self.K, self.M) == (2, 1)

    @property
    def gap(self) -> float:
        """Predicted over quoted, minus 1."""
        return self.predicted / self.quoted - 1

    @property
    def easy(self) -> bool:
        """Whether a prediction of 1.00, that K and M do nothing, would be consistent too."""
        return abs(1 / self.quoted - 1) <= TOLERANCE

    @property
    def unexplained(self) -> float:
        """Quoted minus the predicted and the batch; a batch that was not run explains nothing."""
        batch = self.others["batch"]
        return self.quoted - self.predicted - (0 if isnan(batch) else batch)

    @property
    def verdict(self) -> str:
        """Consistent, or what closes the gap, or that nothing does."""
        if self.baseline:
            return "baseline"
        if not self.papers_size:
            return "another size"
        if abs(self.gap) <= TOLERANCE:
            return "consistent"
        gap = self.quoted - self.predicted
        left = {
            name: abs(gap - more)
            for name, more in self.others.items()
            if name in self.whole and not isnan(more)
        }
        name = min(left, key=lambda name: left[name], default="")
        if not name or left[name] > _HALF * abs(gap):
            return "not explained"
        if left[name] <= TOLERANCE * self.quoted:
            return name
        if abs(self.others[name]) > abs(gap):
            return f"{name} overshoots"
        return f"{name}, {1 - left[name] / abs(gap):.0%} of the gap"

    @property
    def largest_cause(self) -> str:
        """The cause that makes the most difference."""
        return max(self.causes, key=lambda name: abs(self.causes[name]))


def predictions(results: Results) -> list[Prediction]:
    """Of every cell of the paper that was simulated at one N."""
    found = []
    for model in MODELS:
        controlled = protocol(results, model, "controlled")
        others = {name: protocol(results, model, other) for name, other in EXPLANATIONS.items()}
        for K, M in places(model):
            if not isnan(controlled.ratio(K, M)):
                found.append(_prediction(controlled, others, K, M))
    return found


def _prediction(controlled: Protocol, others: dict[str, Protocol], K: int, M: int) -> Prediction:
    model = controlled.model
    predicted = controlled.ratio(K, M)
    ideal = theory.speedup_over_k2m1(K, M, "early")
    causes = {}
    so_far = ideal
    for cause, name in CAUSES.items():
        ratio = controlled.cause_ratio(cause, K, M)
        causes[name] = ratio - so_far
        so_far = ratio
    causes[UPDATE] = predicted - so_far
    run = {name: runs for name, runs in others.items() if runs}
    return Prediction(
        model,
        K,
        M,
        quoted(model, K, M),
        ideal,
        predicted,
        causes,
        {name: run[name].ratio(K, M) - predicted if name in run else nan for name in others},
        tuple(name for name in run if all(run[name].N(*place) for place in places(model))),
        all(runs.papers_size for runs in (controlled, *run.values())),
    )


def tables(results: Results) -> list[Table]:
    """The predictions, and their causes; none before the controlled runs."""
    found = predictions(results)
    return [main(results, found), causes(results, found)] if found else []


HEAD: list[Column[Prediction]] = [
    Column("model", lambda cell: Cell(cell.model, model_name(cell.model))),
    Column("K", lambda cell: plain(cell.K)),
    Column("M", lambda cell: plain(cell.M)),
]
QUOTED: Column[Prediction] = Column("quoted", lambda cell: Cell(cell.quoted, f"{cell.quoted:g}"))
IDEAL: Column[Prediction] = Column("ideal", lambda cell: amount(cell.ideal))


def main(results: Results, found: list[Prediction]) -> Table:
    """One line a cell: quoted, ideal, predicted, the gap and its verdict."""
    columns: list[Column[Prediction]] = [
        *HEAD,
        QUOTED,
        IDEAL,
        *(Column("", partial(_cause, name), name) for name in (*CAUSES.values(), UPDATE)),
        Column("predicted, simulated", lambda cell: amount(cell.predicted), "predicted"),
        Column("gap", _gap),
        Column("most between ideal and predicted", _largest_cause, ""),
        Column("by memory", partial(_with, "batch"), ""),
        Column("by parameters", partial(_with, "cut by parameters"), ""),
        *(Column("", partial(_other, name), name) for name in EXPLANATIONS),
        Column("", lambda cell: Cell(cell.unexplained), "not explained"),
        Column("1.00 would do", _easy, ""),
        Column("verdict", lambda cell: plain(cell.verdict)),
    ]
    note = (
        "Throughput over that of K=2, M=1, simulated at one N for all cells of a model and cut by "
        f"time: {sizes(_controlled(results))}. Consistent: within {TOLERANCE:.0%}, of which "
        "1.00 would do as well where it says so; else the explanation that leaves the least, if it "
        f"closes half of the gap or more. Recorded with the code of {_commits(results)}."
    )
    title = titled("Table 2 predicted: quoted against simulated", _protocols(results))
    return declared("table2_predictions", title, note, found, columns, NAME)


def causes(results: Results, found: list[Prediction]) -> Table:
    """The same with every cause: ideal, each difference, predicted, batch, what is left, quoted."""
    columns: list[Column[Prediction]] = [
        *HEAD,
        IDEAL,
        *(Column(name, partial(_cause, name)) for name in (*CAUSES.values(), UPDATE)),
        Column("predicted", lambda cell: amount(cell.predicted)),
        Column("batch", partial(_other, "batch")),
        Column("not explained", lambda cell: _difference(cell.unexplained)),
        QUOTED,
        Column("or cut by parameters", partial(_other, "cut by parameters")),
    ]
    note = (
        "Ratios over K=2, M=1 at one N; each cause is what it adds to the ratio on top of those "
        "left of it, with the best cut for what counts then, so that a line adds up to quoted. A "
        "cause that slows the base more than the cell raises the ratio."
    )
    title = titled(
        "Table 2 predicted: from the ideal to the quoted ratio, cause by cause (simulated)",
        _protocols(results),
    )
    return declared("table2_causes", title, note, found, columns, NAME, folded=True)


def _cause(name: str, cell: Prediction) -> Cell:
    return _difference(cell.causes[name])


def _other(name: str, cell: Prediction) -> Cell:
    return _difference(cell.others[name])


def _difference(value: float) -> Cell:
    return Cell(value, EMPTY if isnan(value) else f"{value:+.2f}")


def _gap(cell: Prediction) -> Cell:
    return Cell(cell.gap, EMPTY if cell.baseline else f"{100 * cell.gap:+.0f} %")


def _largest_cause(cell: Prediction) -> Cell:
    if cell.baseline:
        return Cell()
    return Cell(text=f"{cell.largest_cause} {cell.causes[cell.largest_cause]:+.2f}")


def _with(name: str, cell: Prediction) -> Cell:
    return Cell(text=number(cell.predicted + cell.others[name]))


def _easy(cell: Prediction) -> Cell:
    return Cell(text="yes" if cell.easy and cell.verdict == "consistent" else EMPTY)


def _controlled(results: Results) -> list[Protocol]:
    return [protocol(results, model, "controlled") for model in MODELS]


def _protocols(results: Results) -> list[Protocol]:
    """Those that the predictions are made from."""
    others = [protocol(results, model, name) for model in MODELS for name in EXPLANATIONS.values()]
    return [*_controlled(results), *others]


def _commits(results: Results) -> str:
    """The commits whose code simulated Table 2."""
    runs = rows_of(results, experiment=NAME, fidelity="simulated", status="done")
    return ", ".join(dict.fromkeys(commit for run in runs for commit in run.commit.split(", ")))
