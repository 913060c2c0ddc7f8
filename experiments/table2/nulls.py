"""Does a cost model predict Table 2 better than a formula that knows nothing of devices?

The two null models are the textbook's K M / (M + K - 1) and the ideal that recomputes early, both
over their own K=2, M=1.
"""

from dataclasses import dataclass
from math import isnan
from statistics import median

from experiments.table2.predictions import COMPARISONS, FUSED, LINGVO_BY_MEMORY, Prediction
from experiments.table2.recorded import HEADLINES, TOLERANCE, titled
from experiments.table2.runs import NAME
from repro.report.grid import Cell, Column, declared, plain
from repro.report.style import model_name
from repro.report.table import EMPTY, Table, number, percent

TEXTBOOK, EARLY = "textbook", "ideal (early recompute)"


@dataclass(frozen=True)
class Score:
    """How well one predictor does on the cells of a model, without the cell that is 1.

    Attributes:
        model: name of the model.
        predictor: its name.
        gaps: predicted over quoted, minus 1, of each cell that it predicts.
        cells: number of cells that the paper prints.
        not_fitting: predicted cells that do not fit the device; 0 where that is not known.
    """

    model: str
    predictor: str
    gaps: tuple[float, ...]
    cells: int
    not_fitting: int = 0

    @property
    def median(self) -> float:
        """Median |gap|."""
        return median(map(abs, self.gaps))

    @property
    def near(self) -> int:
        """Cells within the tolerance."""
        return sum(abs(gap) <= TOLERANCE for gap in self.gaps)

    def beats(self, other: "Score") -> bool:
        """A smaller median |gap|, and at least as many cells within the tolerance."""
        return self.median < other.median and self.near >= other.near


def scores(cells: list[Prediction]) -> list[Score]:
    """Of each model: the two null models first, then the headline, then the comparisons."""
    made = []
    for model in dict.fromkeys(cell.model for cell in cells):
        judged = [cell for cell in cells if cell.model == model and not cell.baseline]
        predicted: dict[str, list[float]] = {
            TEXTBOOK: [cell.ideal("plain") for cell in judged],
            EARLY: [cell.ideal("early") for cell in judged],
        }
        names = {HEADLINES[model]: f"headline ({HEADLINES[model]})"}
        names |= {LINGVO_BY_MEMORY: LINGVO_BY_MEMORY, **COMPARISONS}
        for name, shown in names.items():
            predicted[shown] = [cell.ratio(name) for cell in judged]
        missing = {
            shown: sum(cell.fits(name) is False for cell in judged) for name, shown in names.items()
        }
        for name in FUSED:
            shown = f"{COMPARISONS[name]}, all else fused"
            predicted[shown] = [cell.fused(name) for cell in judged]
            missing[shown] = missing[COMPARISONS[name]]
        for name, ratios in predicted.items():
            pairs = zip(ratios, judged, strict=True)
            gaps = tuple(ratio / cell.quoted - 1 for ratio, cell in pairs if not isnan(ratio))
            if gaps:
                made.append(Score(model, name, gaps, len(judged), missing.get(name, 0)))
    return made


def tables(cells: list[Prediction]) -> list[Table]:
    """One line a model and predictor; none before a simulation."""
    found = scores(cells)
    nulls = {
        model: [score for score in found if score.model == model][:2]
        for model in dict.fromkeys(score.model for score in found)
    }

    def beats(score: Score) -> Cell:
        if score in nulls[score.model]:
            return plain("null model")
        beaten = [null.predictor for null in nulls[score.model] if score.beats(null)]
        if len(beaten) == 2:
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
        f"{TOLERANCE:.0%}."
    )
    shown = [found for cell in cells for found in cell.protocols.values()]
    title = titled(
        "Does the cost model beat a formula? Table 2, simulated and by arithmetic", shown
    )
    return [declared("table2_null", title, note, found, columns, NAME)]


def _near(score: Score) -> Cell:
    return Cell(score.near, f"{number(score.near, 0)} of {len(score.gaps)}")
