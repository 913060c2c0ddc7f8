"""Table 2 as bars: the best evidence for each cell beside the paper's and beside the ideal."""

import textwrap
from dataclasses import dataclass
from math import isnan, nan
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from experiments.costs.error import error_bar
from experiments.table2.recorded import (
    HEADLINES,
    MODELS,
    another_size,
    at_papers_size,
    places,
    protocol,
    quoted,
)
from experiments.table2.runs import NAME
from repro.harness.results import Results, Run
from repro.harness.spec import SCALES
from repro.paper import theory
from repro.report.compare import rows_of
from repro.report.ratio import Ratio, over_k2m1
from repro.report.style import (
    FIDELITIES,
    IDLE,
    MARKERS,
    MODEL_ERROR,
    QUOTED,
    THEORY,
    grid,
    model_name,
    ticks,
)

_WIDTH, _NARROW = 0.26, 0.15  # of a bar, and of the ideal; groups stand 1 apart
# Where the parts of a group stand, beside its middle.
_OFFSETS = {"quoted": -0.32, "ours": -0.05, "ideal": 0.165, "measured": 0.32}
_TITLE_WIDTH = 50  # characters that fit a panel
_SCALES = SCALES[::-1]
_HATCH = "////"  # of cells that are counted not to fit the device
Place = tuple[int, int]  # K, M


@dataclass(frozen=True)
class Evidence:
    """The best evidence for a cell: throughput over K=2, M=1; NaN and no fidelity without any.

    Attributes:
        fidelity: measured, at the paper's size, or simulated.
        ratio: over K=2, M=1.
        fits: whether the cell and its base are counted to fit the device.
        low: lower end of the error bar; NaN without one.
    """

    fidelity: str = ""
    ratio: float = nan
    size: str = ""
    fits: bool = True
    low: float = nan
    high: float = nan


def bars(results: Results, _rows: list[Run]) -> Figure | None:
    """For every cell: quoted, the best evidence, the ideal; a smaller measured model as a dot."""
    best = {
        model: {place: best_evidence(results, model, *place) for place in places(model)}
        for model in MODELS
    }
    smaller = {model: smaller_models(results, model) for model in MODELS}
    evidence = [cell for cells in best.values() for cell in cells.values() if cell.fidelity]
    scales = {scale for cells in smaller.values() for scale, _ in cells.values()}
    if not evidence and not scales:
        return None
    # As low as its numbers can be read: it stands on the first screen, below the verdicts.
    figure, axes = grid(1, len(MODELS), 2.2)
    for panel, model in zip(axes[0], MODELS, strict=True):
        _bars(panel, model, best[model])
        _dots(panel, model, smaller[model])
        headline = protocol(results, model, HEADLINES[model])
        size = another_size([headline])
        told = f"; simulated, {size}: {headline.size}" if size else ""
        panel.set_title(_wrapped(f"{model_name(model)}{told}"))
    axes[0][0].set_ylabel("throughput over K=2, M=1")
    handles = _legend(evidence, sorted(scales, key=_SCALES.index))
    figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(handles)))
    return figure


def best_evidence(results: Results, model: str, K: int, M: int) -> Evidence:
    """Measured at the paper's size, else the headline simulation with its error bar."""
    for run in _measured(results, model, K, M):
        if at_papers_size(run):
            ratio = over_k2m1(results, run)
            size = "the paper's size"
            return Evidence("measured", ratio.value, size, low=ratio.low, high=ratio.high)
    headline = protocol(results, model, HEADLINES[model])
    ratio = headline.ratio(K, M)
    if isnan(ratio):
        return Evidence()
    fits = headline.fits(K, M) is not False and headline.fits(2, 1) is not False
    low = high = nan
    bar = error_bar(results)
    if bar is not None and (K, M) != (2, 1):  # the base is 1 without an error
        low, high = bar.ends(ratio)
    papers_size = "half of Table 1's widths" if headline.widths else "the paper's size"
    size = another_size([headline]) or papers_size
    return Evidence("simulated", ratio, size, fits, low, high)


def smaller_models(results: Results, model: str) -> dict[Place, tuple[str, Ratio]]:
    """Cell -> (scale, ratio) measured with a smaller model, of the largest scale."""
    found = {}
    for place in places(model):
        for run in _measured(results, model, *place):
            if not at_papers_size(run):
                found[place] = (run.scale, over_k2m1(results, run))
                break
    return found


def _measured(results: Results, model: str, K: int, M: int) -> list[Run]:
    """The measured runs that have a baseline, of the largest scale first."""
    runs = rows_of(results, experiment=NAME, model=model, fidelity="measured", K=K, M=M)
    runs = [run for run in runs if not isnan(over_k2m1(results, run).value)]
    return sorted(runs, key=lambda run: _SCALES.index(run.scale))


def bars_caption(results: Results) -> str:
    shown = [protocol(results, model, HEADLINES[model]) for model in MODELS]
    size = another_size(shown)
    at = f"at {size}, which shows nothing about the paper," if size else "at the paper's size"
    bar = (
        ""
        if error_bar(results) is None
        else ", with the median error of the cost model as a line without caps"
    )
    return (
        f"Table 2 as bars, throughput over K=2, M=1: quoted, simulated {at} with the largest "
        f"mini-batch that fits{bar}, and the ideal. Dots, with their intervals: measured with a "
        "smaller model, whose ratios can show a trend."
    )


def _wrapped(title: str) -> str:
    return textwrap.fill(title, _TITLE_WIDTH, break_on_hyphens=False)


def _bars(axes: Axes, model: str, cells: dict[Place, Evidence]) -> None:
    """Three bars a cell: quoted, ours in its fidelity's colour, and the ideal without filling."""
    xs = range(len(cells))
    values = [quoted(model, *place) for place in cells]
    places_of_quoted = [x + _OFFSETS["quoted"] for x in xs]
    axes.bar(places_of_quoted, values, _WIDTH, color=QUOTED, label="quoted")
    for x, (place, cell) in enumerate(cells.items()):
        if cell.fidelity:
            ours: dict[str, Any] = {
                "color": FIDELITIES[cell.fidelity],
                "hatch": "" if cell.fits else _HATCH,
                "label": cell.fidelity,
            }
            if not isnan(cell.low):
                ours["yerr"] = [[cell.ratio - cell.low], [cell.high - cell.ratio]]
                ours["error_kw"] = MODEL_ERROR
            axes.bar(x + _OFFSETS["ours"], cell.ratio, _WIDTH, **ours)
        ideal = theory.speedup_over_k2m1(*place, "early")
        look: dict[str, Any] = {"facecolor": "none", "edgecolor": THEORY, "linewidth": 0.9}
        axes.bar(x + _OFFSETS["ideal"], ideal, _NARROW, label="ideal", **look)
    for x in xs[1:]:
        axes.axvline(x - 0.5, color=IDLE, linewidth=0.8, zorder=0)
    axes.set_xlim(-0.5, len(cells) - 0.5)
    ticks(axes, list(xs), [f"K={K}\nM={M}" for K, M in cells])
    axes.margins(y=0.08)
    axes.grid(axis="x", visible=False)


def _dots(axes: Axes, model: str, cells: dict[Place, tuple[str, Ratio]]) -> None:
    """Measured cells of a smaller model beside the bars, each with its interval."""
    order = places(model)
    for place, (_, ratio) in cells.items():
        below, above_ = ratio.value - ratio.low, ratio.high - ratio.value
        axes.errorbar(
            order.index(place) + _OFFSETS["measured"],
            ratio.value,
            [[0.0], [0.0]] if isnan(ratio.low) else [[below], [above_]],
            fmt=MARKERS["measured"],
            ms=4.5,
            color=FIDELITIES["measured"],
            capsize=2,
            label="measured",
        )


def _legend(evidence: list[Evidence], scales: list[str]) -> list[Any]:
    """Handles for quoted, each fidelity with the sizes of its models, ideal, and the dots."""
    handles: list[Any] = [Patch(facecolor=QUOTED, label="quoted")]
    for fidelity, colour in FIDELITIES.items():
        sizes = dict.fromkeys(cell.size for cell in evidence if cell.fidelity == fidelity)
        if sizes:
            handles.append(Patch(facecolor=colour, label=f"{fidelity}, {' or '.join(sizes)}"))
    handles.append(Patch(facecolor="none", edgecolor=THEORY, label="ideal"))
    if any(not cell.fits for cell in evidence):
        look: dict[str, Any] = {"facecolor": "none", "edgecolor": THEORY, "hatch": _HATCH}
        handles.append(Patch(label="counted not to fit", **look))
    if scales:
        label = f"measured, {' or '.join(scales)} size: a smaller model"
        handles.append(
            Line2D(
                [],
                [],
                label=label,
                color=FIDELITIES["measured"],
                marker=MARKERS["measured"],
                linestyle="",
            )
        )
    return handles
