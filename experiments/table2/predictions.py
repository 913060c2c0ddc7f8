"""Table 2 predicted and held against the paper's: the gap of each cell, cause by cause; of another size no verdict.

Ratios are over K=2, M=1; a cause is the difference that it makes to the ratio, so causes add up
from the uniform pipeline's closed form to the prediction.
"""

from dataclasses import dataclass
from math import isnan, nan
from typing import TYPE_CHECKING, Any

from experiments.table2 import sensitivity as table2_sensitivity
from experiments.table2 import why as table2_why
from experiments.table2.recorded import (
    MODELS,
    NAME,
    RUNGS,
    TOLERANCE,
    Protocol,
    another_size,
    places,
    protocol,
    quoted,
    warning,
)
from repro.paper import theory
from repro.report.compare import rows_of
from repro.report.style import model_name
from repro.report.table import EMPTY, Table, number, table_of_frames
from repro.report.texts import IDEAL

if TYPE_CHECKING:
    from repro.harness.results import Results

UPDATE = "update"
# what may explain the rest -> its protocol
NAMED = {"batch": "by memory", "cut by parameters": "by parameters"}
_HALF = 0.5  # of the gap: what an explanation must close to be named at all


@dataclass(frozen=True)
class Prediction:
    """One cell: everything a ratio over K=2, M=1.

    Attributes:
        quoted: the paper's.
        ideal: of equal layers, recomputing early.
        predicted: simulated, the controlled protocol.
        causes: ideal to predicted, one after the other; their sum is the difference.
        others: of each explanation in `NAMED`, its ratio minus the predicted; NaN where it was not
            run or nothing fits.
        whole: explanations whose protocol could run every cell of the model; no other earns a
            verdict.
        papers_size: whether what was simulated is of the paper's size; else its verdict is that it
            is not.
    """

    model: str
    K: int
    M: int
    quoted: float
    ideal: float
    predicted: float
    causes: dict[str, float]
    others: dict[str, float]
    whole: tuple[str, ...] = tuple(NAMED)
    papers_size: bool = True

    @property
    def gap(self) -> float:
        """Predicted over quoted, minus 1."""
        return self.predicted / self.quoted - 1

    @property
    def easy(self) -> bool:
        """Whether 1.00, as if K and M did nothing, would be as near as what is called consistent."""
        return abs(1 / self.quoted - 1) <= TOLERANCE

    @property
    def unexplained(self) -> float:
        """Quoted minus the predicted and the batch; a batch that was not run explains nothing."""
        batch = self.others["batch"]
        return self.quoted - self.predicted - (0 if isnan(batch) else batch)

    @property
    def verdict(self) -> str:
        """Consistent, or what closes the gap, or that nothing does."""
        if (self.K, self.M) == (2, 1):
            return "baseline"
        if not self.papers_size:
            return "another size"
        if abs(self.gap) <= TOLERANCE:
            return "consistent"
        known = {
            name: more
            for name, more in self.others.items()
            if name in self.whole and not isnan(more)
        }
        left = {name: abs(self.quoted - self.predicted - more) for name, more in known.items()}
        gap = abs(self.quoted - self.predicted)
        name = min(left, key=lambda name: left[name], default="")
        if not name or left[name] > _HALF * gap:
            return "not explained"
        if left[name] <= TOLERANCE * self.quoted:
            return name
        beyond = abs(known[name]) > gap
        return f"{name} overshoots" if beyond else f"{name}, {1 - left[name] / gap:.0%} of the gap"


def tables(results: "Results") -> list[Table]:
    """Predictions, their causes, the row of M=32 and what they say; none before the controlled runs."""
    found = predictions(results)
    if not found:
        return []
    explained = [
        *table2_why.tables(results),
        causes(found, results),
        *table2_sensitivity.tables(results),
    ]
    return [main(found, results), *explained]


def predictions(results: "Results") -> list[Prediction]:
    """Of every cell of the paper that was simulated at one N."""
    made = []
    for model in MODELS:
        own = protocol(results, model, "controlled")
        others = {name: protocol(results, model, group) for name, group in NAMED.items()}
        made += [
            _prediction(own, others, *at)
            for at in places(model)
            if own and not isnan(own.ratio(*at))
        ]
    return made


def _prediction(own: Protocol, others: dict[str, Protocol], K: int, M: int) -> Prediction:
    ideal, predicted = theory.speedup_over_k2m1(K, M, "early"), own.ratio(K, M)
    so_far, steps = ideal, dict[str, float]()
    for rung, cause in RUNGS.items():
        ratio = own.rung(rung, 2, 1) / own.rung(rung, K, M)
        steps[cause] = ratio - so_far
        so_far = ratio
    steps[UPDATE] = predicted - so_far
    more = {name: some.ratio(K, M) - predicted if some else nan for name, some in others.items()}
    whole = tuple(
        name
        for name, some in others.items()
        if some and all(some.N(*at) for at in places(own.model))
    )
    same = all(some.papers_size for some in (own, *others.values()) if some)
    return Prediction(
        own.model, K, M, quoted(own.model, K, M), ideal, predicted, steps, more, whole, same
    )


def _protocols(found: list[Prediction], results: "Results") -> list[Protocol]:
    """Those that these predictions are of."""
    models = dict.fromkeys(one.model for one in found)
    return [
        some
        for model in models
        for name in ("controlled", *NAMED.values())
        if (some := protocol(results, model, name))
    ]


def main(found: list[Prediction], results: "Results") -> Table:
    """One line a cell: quoted, ideal, predicted, the gap and its verdict."""
    from pandas import DataFrame

    owns = _protocols(found, results)
    abouts = dict.fromkeys(protocol(results, one.model, "controlled").about for one in found)
    note = warning(owns) + (
        "Throughput over that of K=2, M=1. Predicted: simulated at one N for all cells of a "
        f"model, stages cut by time, {'; '.join(abouts)}. {IDEAL} Gap: predicted over quoted, "
        f"minus 1. {_judged(found)}Recorded with the code of {_commits(results)}."
    )
    size = another_size(owns) or "at the paper's size"
    title = (
        f"Table 2 predicted{', ' if another_size(owns) else ' '}{size}: quoted against simulated"
    )
    return table_of_frames(
        "table2_predictions",
        title,
        note,
        DataFrame([_shown(one) for one in found]),
        _data(found),
        NAME,
    )


def _judged(found: list[Prediction]) -> str:
    """What verdicts mean and how many cells have the best one; nothing where every cell is of another size."""
    judged = [one for one in found if one.papers_size and one.verdict != "baseline"]
    if not judged:
        return ""
    said = [one for one in judged if one.verdict == "consistent"]
    easy = [
        f"{model_name(one.model)} K={one.K}, M={one.M} ({one.quoted:g})" for one in said if one.easy
    ]
    words = (
        f"Consistent: within {TOLERANCE:.0%}, one tolerance for all cells, since the profiles' "
        "attained rates are known no better; a simulation earns no better word. Else: the "
        "explanation that leaves the least (batch: the largest N that fits each cell; cut by "
        "parameters), named where it closes half of the gap or more, and only if every cell of "
        "the model can be run so. A name is of its cell alone: what fits one cell and not its "
        f"neighbours explains no row, see below. {len(said)} of {len(judged)} cells are "
        "consistent. "
    )
    if easy:
        words += (
            "Of these a prediction of 1.00, that nothing changes, would be so too: "
            f"{'; '.join(easy)}. "
        )
    return words


def _commits(results: "Results") -> str:
    """The commits whose code simulated Table 2."""
    rows = rows_of(results, experiment=NAME, fidelity="simulated", status="done")
    return ", ".join(dict.fromkeys(commit for row in rows for commit in row.commit.split(", ")))


def _shown(one: Prediction) -> dict[str, str]:
    cause = max(one.causes, key=lambda name: abs(one.causes[name]))
    base = one.verdict == "baseline"
    return {
        "model": model_name(one.model),
        "K": str(one.K),
        "M": str(one.M),
        "quoted": f"{one.quoted:g}",
        "ideal": number(one.ideal),
        "predicted, simulated": number(one.predicted),
        "gap": EMPTY if base else f"{100 * one.gap:+.0f} %",
        "most between ideal and predicted": EMPTY if base else f"{cause} {one.causes[cause]:+.2f}",
        "by memory": _sum(one, "batch"),
        "by parameters": _sum(one, "cut by parameters"),
        "verdict": one.verdict,
    }


def _sum(one: Prediction, name: str) -> str:
    return number(one.predicted + one.others[name])


def _data(found: list[Prediction]) -> Any:
    from pandas import DataFrame

    lines = []
    for one in found:
        line: dict[str, Any] = {
            name: getattr(one, name) for name in ("model", "K", "M", "quoted", "ideal")
        }
        line |= one.causes | {"predicted": one.predicted, "gap": one.gap} | one.others
        lines.append(line | {"not explained": one.unexplained, "verdict": one.verdict})
    return DataFrame(lines)


def causes(found: list[Prediction], results: "Results") -> Table:
    """The same with every cause: ideal, each difference, predicted, batch, what is left, quoted."""
    from pandas import DataFrame

    lines = [_causes(one) for one in found]
    owns = _protocols(found, results)
    note = warning(owns) + (
        f"Ratios over K=2, M=1 at one N. {IDEAL} Every cause is what it adds to the ratio when it "
        "comes on top of those left of it, each time with the best cut for what counts then, so a "
        "line adds up: ideal, causes, predicted, batch, not explained, quoted. A cause that slows "
        "the base more than the cell raises the ratio. Imbalance: layers by their matrix "
        "operations; softmax and embedding: the model's ends too; memory-bound operators: the "
        "longer of operations and bytes; launch: a fixed time for each operator; transfer: the "
        "link; update: the optimizer. Batch: the largest N that fits, minus one N; where nothing "
        "fits it is not added. Cut by parameters is an alternative and not added. Causes of the "
        "gap's size that no model here has stay in not explained."
    )
    size = another_size(owns)
    title = (
        f"Table 2 predicted{', ' * bool(size)}{size}: from the ideal to the quoted ratio, cause by "
        "cause (simulated)"
    )
    return table_of_frames(
        "table2_causes", title, note, DataFrame(lines), _data(found), NAME, folded=True
    )


def _causes(one: Prediction) -> dict[str, str]:
    line = {
        "model": model_name(one.model),
        "K": str(one.K),
        "M": str(one.M),
        "ideal": number(one.ideal),
    }
    line |= {name: f"{more:+.2f}" for name, more in one.causes.items()} | {
        "predicted": number(one.predicted)
    }
    batch, other = one.others["batch"], one.others["cut by parameters"]
    line |= {
        "batch": EMPTY if isnan(batch) else f"{batch:+.2f}",
        "not explained": f"{one.unexplained:+.2f}",
    }
    return line | {
        "quoted": f"{one.quoted:g}",
        "or cut by parameters": EMPTY if isnan(other) else f"{other:+.2f}",
    }
