"""Does a cost model predict Table 2 better than a formula that knows nothing of devices?

The two null models are the textbook's K M / (M + K - 1) and the ideal that recomputes early, both
over their own K=2, M=1.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import isnan
from statistics import median
from typing import NamedTuple

from experiments.table2.predictions import (
    BY_MEMORY,
    COMPARISONS,
    DOES_NOT_FIT,
    FUSED,
    SHARE_BY_MEMORY,
    VARIANCE_BY_MEMORY,
    Prediction,
)
from experiments.table2.recorded import HEADLINES, TOLERANCE, titled
from experiments.table2.runs import NAME
from repro.report.grid import Cell, Column, declared, plain
from repro.report.style import model_name
from repro.report.table import EMPTY, Table, number, percent

TEXTBOOK, EARLY = NULLS = ("textbook", "ideal (early recompute)")


@dataclass(frozen=True)
class Score:
    """How well one predictor does on the cells of a model, without the cell that is 1.

    Attributes:
        gaps: predicted over quoted, minus 1, of each cell that it predicts.
        not_fitting: predicted cells that do not fit the device; 0 where that is not known.
    """

    model: str
    predictor: str
    gaps: tuple[float, ...]
    not_fitting: int = 0

    @property
    def median(self) -> float:
        """Median |gap|."""
        return median(map(abs, self.gaps))

    @property
    def near(self) -> int:
        return sum(abs(gap) <= TOLERANCE for gap in self.gaps)

    def beats(self, other: "Score") -> bool:
        """A smaller median |gap|, and at least as many cells within the tolerance."""
        return self.median < other.median and self.near >= other.near


class Predictor(NamedTuple):
    """What predicts a cell, and the protocol that says whether the cell fits, if one does."""

    ratio: Callable[[Prediction], float]
    protocol: str = ""


def predictors(model: str) -> dict[str, Predictor]:
    """By name: the two null models first, then the headline, then the comparisons."""
    headline = HEADLINES[model]
    made = {
        TEXTBOOK: Predictor(lambda cell: cell.ideal("plain")),
        EARLY: Predictor(lambda cell: cell.ideal("early")),
        f"headline ({headline})": Predictor(partial(_ratio, headline), headline),
    }
    for protocol in (BY_MEMORY, SHARE_BY_MEMORY, VARIANCE_BY_MEMORY):
        if protocol != headline:
            made[protocol] = Predictor(partial(_ratio, protocol), protocol)
    for protocol, name in COMPARISONS.items():
        made[name] = Predictor(partial(_ratio, protocol), protocol)
    for protocol, bound in FUSED:
        name = f"{COMPARISONS[protocol]}, all else {bound}"
        made[name] = Predictor(partial(_bound, protocol, bound), protocol)
    return made


def _ratio(protocol: str, cell: Prediction) -> float:
    return cell.ratio(protocol)


def _bound(protocol: str, bound: str, cell: Prediction) -> float:
    return cell.bound(protocol, bound)


def scores(cells: list[Prediction]) -> list[Score]:
    made = []
    for model in dict.fromkeys(cell.model for cell in cells):
        judged = [cell for cell in cells if cell.model == model and not cell.baseline]
        for name, predictor in predictors(model).items():
            pairs = [(predictor.ratio(cell), cell.quoted) for cell in judged]
            gaps = tuple(ratio / quoted - 1 for ratio, quoted in pairs if not isnan(ratio))
            not_fitting = sum(cell.fits(predictor.protocol) is False for cell in judged)
            if gaps:
                made.append(Score(model, name, gaps, not_fitting))
    return made


def tables(cells: list[Prediction]) -> list[Table]:
    lines = scores(cells)

    def beats(score: Score) -> Cell:
        if score.predictor in NULLS:
            return plain("null model")
        rivals = [other for other in lines if other.model == score.model]
        if score.not_fitting:
            return plain(DOES_NOT_FIT)
        beaten = [
            other.predictor for other in rivals if other.predictor in NULLS and score.beats(other)
        ]
        if len(beaten) == len(NULLS):
            return plain("both")
        return plain(f"{beaten[0]} alone" if beaten else "neither")

    columns: list[Column[Score]] = [
        Column("model", lambda score: Cell(score.model, model_name(score.model))),
        Column("prediction", lambda score: plain(score.predictor)),
        Column("median |gap|", lambda score: Cell(score.median, percent(score.median))),
        Column(f"within {TOLERANCE:.0%}", _near, "near"),
        Column("", lambda score: plain(len(score.gaps)), "cells"),
        Column(
            "do not fit", lambda score: Cell(score.not_fitting, str(score.not_fitting or EMPTY))
        ),
        Column("beats", beats),
    ]
    note = (
        "Gap: predicted over quoted, minus 1, over the cells of a model but K=2, M=1. A prediction "
        "beats a null model with a smaller median and at least as many cells within "
        f"{TOLERANCE:.0%}; one whose cells do not fit the device earns no verdict."
    )
    shown = [found for cell in cells for found in cell.protocols.values()]
    title = titled(
        "Does the cost model beat a formula? Table 2, simulated and by arithmetic", shown
    )
    return [declared("table2_null", title, note, lines, columns, NAME)]


def _near(score: Score) -> Cell:
    return Cell(score.near, f"{number(score.near, 0)} of {len(score.gaps)}")
