"""Reliability (arXiv:1811.06965v5, section 7): distances of trainings with other K, D and M."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.consistency.runs import BASE_M, LIMIT, MODELS, NAME, REPEATED_AT
from repro.claims.all_claims import verdict_on
from repro.claims.cells import cell_id
from repro.claims.claim import Evidence
from repro.harness.results import Results, Run
from repro.harness.schema import LearnRound
from repro.harness.spec import TINY
from repro.harness.statistics import mean_interval
from repro.report.compare import matching, rows_of, where
from repro.report.declared import Shown
from repro.report.grid import Cell, Column, declared, estimate, place_column, plain
from repro.report.style import grid, model_name, series_colour
from repro.report.table import Table

CLOSEST = 1e-7  # losses are of about 3, so float32 hardly tells less
NORMS = {"amoebanet-b": "batch norm", "translation": "layer norm"}
WITH_BATCH_NORM, WITHOUT = "amoebanet-b", "translation"


@dataclass(frozen=True)
class Pair:
    """Two trainings with the same seed: the usual one, and one with another K, D or M."""

    base: Run
    other: Run

    @property
    def identical(self) -> bool:
        """Whether all losses, weights and buffers are the same, bit for bit."""
        base, other = record_of(self.base), record_of(self.other)
        return base.loss == other.loss and base.digest == other.digest

    @property
    def differences(self) -> np.ndarray:
        """Of the recorded weights."""
        return np.array(record_of(self.other).weights) - np.array(record_of(self.base).weights)

    @property
    def loss_distances(self) -> np.ndarray:
        """Between the losses of each step; NaN where one is not finite."""
        losses = [np.array(record_of(run).loss, dtype=float) for run in (self.base, self.other)]
        return np.abs(losses[1] - losses[0])

    @property
    def distance(self) -> float:
        """Euclidean norm of the differences over that of the weights."""
        base, other = record_of(self.base).weights, record_of(self.other).weights
        return math.dist(base, other) / math.hypot(*base)


@dataclass(frozen=True)
class Comparison:
    """One change of a training, over all seeds.

    Attributes:
        where: the scale, and the machine where there are several.
        change: what differs from the usual training.
        pairs: one for each seed.
    """

    where: str
    model: str
    change: str
    pairs: list[Pair]

    @property
    def distance(self) -> tuple[float, float, float]:
        """Mean relative distance over seeds, and its interval."""
        return mean_interval([pair.distance for pair in self.pairs])

    @property
    def greatest_distance(self) -> float:
        """The greatest relative distance over seeds."""
        return max(pair.distance for pair in self.pairs)

    @property
    def identical(self) -> int:
        """Seeds with which both trainings are the same."""
        return sum(pair.identical for pair in self.pairs)


def record_of(run: Run) -> LearnRound:
    """What was recorded of a training that is done."""
    record = run.rounds[-1].record
    assert isinstance(record, LearnRound)
    return record


SHOWN = Shown(NAME)


def tables(results: Results) -> list[Table]:
    if not rows_of(results, experiment=NAME):
        return []
    lines = comparisons(results)

    def relative(line: Comparison) -> Cell:
        return estimate(line.distance, ".1e") if line.greatest_distance else Cell(0.0, "0")

    def greatest(line: Comparison) -> Cell:
        value = max(float(np.abs(pair.differences).max()) for pair in line.pairs)
        return Cell(value, f"{value:.1e}" if value else "0")

    def first_loss(line: Comparison) -> Cell:
        value = max(float(pair.loss_distances[0]) for pair in line.pairs)
        return Cell(value, f"{value:.1e}" if value else "0")

    columns: list[Column[Comparison]] = [
        *place_column(lines, lambda line: line.where),
        Column(
            "model", lambda line: Cell(line.model, f"{model_name(line.model)}, {NORMS[line.model]}")
        ),
        Column("change", lambda line: plain(line.change)),
        Column("seeds", lambda line: plain(len(line.pairs))),
        Column(
            "identical", lambda line: Cell(line.identical, f"{line.identical} of {len(line.pairs)}")
        ),
        Column(
            "relative distance",
            relative,
            ends=("relative distance: low", "relative distance: high"),
        ),
        Column("", lambda line: Cell(line.greatest_distance), csv="greatest relative distance"),
        Column("", greatest, csv="greatest difference"),
        Column("first loss", first_loss),
        Column("verdict", lambda line: plain(verdict(line, lines))),
    ]
    note = (
        f"Measured against K=1, D=1, M={BASE_M} with the same seed: identical are all losses, "
        "weights and buffers, the relative distance is that of 1,000 weights at the end (mean, "
        "bootstrap 95 % interval from five seeds on), and the first loss is the greatest "
        "difference before any update. It cannot show how far long trainings of large models drift "
        "apart, and the two models differ in more than their norm."
    )
    title = "Is the model the same for every K, D and M? (sections 2.2 and 7)"
    return [declared(NAME, title, note, lines, columns, NAME)]


def answer(tables: Mapping[str, Table]) -> str:
    table = tables[NAME].shown
    of_stages = table[table["change"].str.startswith("K=")]
    pairs = [tuple(map(int, text.split(" of "))) for text in of_stages["identical"]]
    if not pairs:
        raise LookupError("no training with another K")
    return (
        f"{sum(same for same, _ in pairs)} of {sum(count for _, count in pairs)} trainings with "
        "another K have the same losses and weights as with K=1, bit for bit."
    )


def comparisons(results: Results) -> list[Comparison]:
    done = rows_of(results, experiment=NAME, status="done")
    lines = []
    for place in dict.fromkeys(run.place for run in done):
        for model in MODELS:
            pairs: dict[str, list[Pair]] = {}
            runs = matching(done, place=place, model=model)
            for run in runs:
                base = next((other for other in runs if _is_base_of(other, run)), None)
                if base is not None and base is not run:
                    pairs.setdefault(_change(run), []).append(Pair(base, run))
            lines += [
                Comparison(where(results, of_change[0].other), model, change, of_change)
                for change, of_change in pairs.items()
            ]
    return lines


def _is_base_of(base: Run, run: Run) -> bool:
    usual = (base.K, base.D, base.M) == (1, 1, BASE_M) and not _is_repeated(base)
    return usual and (base.group, base.spec.seed) == (run.group, run.spec.seed)


def _is_repeated(run: Run) -> bool:
    """Whether it is the second run of the usual training, on a GPU."""
    return run.scale in REPEATED_AT and run.group == "stages" and run.spec.transport == "auto"


def _change(run: Run) -> str:
    if _is_repeated(run):
        return "the same once more"
    if run.D > 1:
        return f"D={run.D} with M={run.M}"
    return f"K={run.K}" if run.K > 1 else f"M={run.M}, no dropout"


def verdict(line: Comparison, lines: list[Comparison]) -> str:
    """What a line shows, by the rules that the experiment fixes."""
    first = line.pairs[0].other
    all_identical = line.identical == len(line.pairs)
    if _is_repeated(first):
        return "repeatable" if all_identical else "not repeatable"
    if first.D > 1:
        return f"{'' if line.greatest_distance <= LIMIT else 'not '}within {LIMIT:g}"
    if first.K > 1:
        if first.scale in TINY:
            return "identical" if all_identical else "not identical"
        return verdict_on(cell_id(NAME, line.model), differing([line]))
    if line.model == WITHOUT:
        return "without batch norm"
    compared = (line.where, WITHOUT, line.change)
    without = [other for other in lines if (other.where, other.model, other.change) == compared]
    # False for intervals that are NaN, of too few seeds.
    if without and line.distance[1] > without[0].distance[2]:
        return "trend: batch norm makes M matter"
    return "not shown at this size"


def differing(lines: list[Comparison]) -> Evidence:
    count = sum(len(line.pairs) - line.identical for line in lines)
    runs = [run.id for line in lines for pair in line.pairs for run in (pair.base, pair.other)]
    return Evidence(count, "measured", tuple(dict.fromkeys(runs)))


def figures(results: Results, rows: list[Run]) -> Iterator[tuple[str, Figure | None, str]]:
    names = [where(results, run) for run in rows]
    place = max(dict.fromkeys(names), key=names.count, default="")
    lines = [
        line
        for line in comparisons(results)
        if line.where == place and line.identical < len(line.pairs)
    ]
    if not lines:
        return
    figure, ((*panels,),) = grid(1, len(MODELS), 2.8)
    for panel, model in zip(panels, MODELS, strict=True):
        _distances(panel, [line for line in lines if line.model == model])
        panel.set_title(f"{model_name(model)}, {NORMS[model]}")
    panels[0].set_ylabel("distance of losses, measured")
    caption = (
        f"Distance between the losses of each step and those of K=1, D=1, M={BASE_M}, median over "
        f"seeds; below {CLOSEST:g} it is drawn there. Losses of other K are equal and not drawn."
    )
    yield "distances", figure, caption


def _distances(axes: Axes, lines: list[Comparison]) -> None:
    for line in lines:
        distances = np.median([pair.loss_distances for pair in line.pairs], axis=0)
        style = "--" if line.pairs[0].other.D > 1 else "-"
        colour = series_colour(line.pairs[0].other.M)
        steps = range(1, len(distances) + 1)
        axes.plot(
            steps,
            np.maximum(distances, CLOSEST),
            style,
            color=colour,
            marker=".",
            label=line.change,
        )
    axes.set(yscale="log", ylim=(CLOSEST / 2, 10), xlabel="step")
    axes.set_yticks([10.0**power for power in range(-7, 2, 2)])
    axes.minorticks_off()
    axes.legend()
