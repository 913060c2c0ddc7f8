"""Table 2 as bars, the best evidence for each cell beside the paper's, and its protocols."""

import textwrap
from dataclasses import dataclass
from math import isnan, nan
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from experiments.table2.protocols import above, ran_protocols
from experiments.table2.recorded import (
    MODELS,
    Protocol,
    another_size,
    at_papers_size,
    places,
    protocol,
    quoted,
)
from experiments.table2.runs import NAME
from repro.harness.results import Results, Run
from repro.paper import theory
from repro.report.compare import rows_of
from repro.report.ratio import Ratio, over_k2m1
from repro.report.style import FIDELITIES, MARKERS, QUOTED, THEORY, grid, model_name, ticks

_WIDTH = 0.21  # of a bar; groups stand 1 apart
# Where the parts of a group stand, beside its middle.
_OFFSETS = {"quoted": -0.33, "ours": -0.11, "ideal": 0.11, "measured": 0.28}
_TITLE_WIDTH = 96  # characters that fit a panel
_FORMS: dict[theory.Form, str] = {"plain": "--", "early": "-"}
# Modelled fidelity -> its protocol, the most real first.
_MODELLED = {"emulated": "emulated", "simulated": "controlled"}
# Protocol -> label and colour; all are simulated, so of one marker.
_PROTOCOLS = {
    "controlled": ("one N", FIDELITIES["simulated"]),
    "by memory": ("largest N that fits", "#D55E00"),
    "half widths, by memory": ("largest N that fits, half widths", "#F0C04A"),
    "by parameters": ("one N, cut by parameters", "#009E73"),
}
_SCALES = ("paper", "node", "laptop", "smoke")
Place = tuple[int, int]  # K, M


@dataclass(frozen=True)
class Evidence:
    """The best evidence for a cell: throughput over K=2, M=1; NaN and no fidelity without any."""

    fidelity: str = ""
    ratio: float = nan
    size: str = ""


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
    figure, axes = grid(len(MODELS), 1, 2.9)
    for (panel,), model in zip(axes, MODELS, strict=True):
        _bars(panel, model, best[model])
        _dots(panel, model, smaller[model])
        kinds = dict.fromkeys(cell.fidelity for cell in best[model].values())
        sizes = [
            _size_of(kind, protocol(results, model, _MODELLED[kind]))
            for kind in kinds
            if kind in _MODELLED
        ]
        panel.set_title(_wrapped("; ".join([model_name(model), *sizes])))
    handles = _legend(evidence, sorted(scales, key=_SCALES.index))
    figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(handles)))
    return figure


def best_evidence(results: Results, model: str, K: int, M: int) -> Evidence:
    """The most real evidence for a cell; measured counts only at the paper's size."""
    for run in _measured(results, model, K, M):
        if at_papers_size(run):
            return Evidence("measured", over_k2m1(results, run).value, "the paper's size")
    for fidelity, name in _MODELLED.items():
        runs = protocol(results, model, name)
        if not isnan(runs.ratio(K, M)):
            size = another_size([runs]) or "the paper's size"
            return Evidence(fidelity, runs.ratio(K, M), size)
    return Evidence()


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


def _size_of(fidelity: str, runs: Protocol) -> str:
    """`simulated, smoke size: L=6, N=32 on tpu-v3`; without the scale at the paper's size."""
    size = another_size([runs])
    return f"{fidelity}, {size}: {runs.size}" if size else f"{fidelity}: {runs.size}"


def bars_caption(results: Results) -> str:
    """Two sentences below the bars."""
    shown = [protocol(results, model, name) for model in MODELS for name in _MODELLED.values()]
    return (
        f"Table 2 as bars, throughput over K=2, M=1: quoted, the best evidence {_at(shown)} "
        "(measured, else emulated, else simulated) and the ideal. Dots, with their intervals: "
        "measured with a smaller model, whose ratios can show a trend."
    )


def protocols_caption(results: Results) -> str:
    """Two sentences below the protocols."""
    shown = [runs for model in MODELS for runs in ran_protocols(results, model).values()]
    return (
        f"Table 2 under other protocols, simulated {_at(shown)}, each over its own K=2, M=1. No "
        "pipeline at one mini-batch is above the plain ideal, except by recomputing early."
    )


def _at(protocols: list[Protocol]) -> str:
    size = another_size(protocols)
    return f"at {size}, which shows nothing about the paper," if size else "at the paper's size"


def _wrapped(title: str) -> str:
    """The title on as many lines as a panel's width takes."""
    return textwrap.fill(title, _TITLE_WIDTH, break_on_hyphens=False)


def _bars(axes: Axes, model: str, cells: dict[Place, Evidence]) -> None:
    """Three bars a cell: quoted, ours in its fidelity's colour, and the ideal without filling."""
    label: dict[str, Any] = {"fontsize": 6.5, "padding": 1}
    xs = range(len(cells))
    values = [quoted(model, *place) for place in cells]
    drawn = axes.bar([x + _OFFSETS["quoted"] for x in xs], values, _WIDTH, color=QUOTED)
    axes.bar_label(drawn, [f"{value:g}" for value in values], **label)
    for x, (place, cell) in enumerate(cells.items()):
        if cell.fidelity:
            colour = FIDELITIES[cell.fidelity]
            bar = axes.bar(x + _OFFSETS["ours"], cell.ratio, _WIDTH, color=colour)
            axes.bar_label(bar, [f"{cell.ratio:.2f}"], **label)
        ideal = theory.speedup_over_k2m1(*place, "early")
        look: dict[str, Any] = {"facecolor": "none", "edgecolor": THEORY, "linewidth": 0.9}
        bar = axes.bar(x + _OFFSETS["ideal"], ideal, _WIDTH, **look)
        axes.bar_label(bar, [f"{ideal:.2f}"], **label)
    for x in xs[1:]:
        axes.axvline(x - 0.5, color="#DDDDDD", linewidth=0.7, zorder=0)
    axes.set_xlim(-0.5, len(cells) - 0.5)
    ticks(axes, list(xs), [f"K={K}\nM={M}" for K, M in cells])
    axes.set(ylabel="throughput over K=2, M=1")
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
        )


def _legend(evidence: list[Evidence], scales: list[str]) -> list[Any]:
    """Handles for quoted, each fidelity with the sizes of its models, ideal, and the dots."""
    handles: list[Any] = [Patch(facecolor=QUOTED, label="quoted")]
    for fidelity, colour in FIDELITIES.items():
        sizes = dict.fromkeys(cell.size for cell in evidence if cell.fidelity == fidelity)
        if sizes:
            handles.append(Patch(facecolor=colour, label=f"{fidelity}, {' or '.join(sizes)}"))
    handles.append(Patch(facecolor="none", edgecolor=THEORY, label="ideal"))
    if scales:
        label = f"measured, {' or '.join(scales)} size: a smaller model"
        look: dict[str, Any] = {"marker": MARKERS["measured"], "linestyle": ""}
        handles.append(Line2D([], [], label=label, color=FIDELITIES["measured"], **look))
    return handles


def protocol_dots(results: Results, _rows: list[Run]) -> Figure | None:
    """Quoted cells over the simulated ones of every protocol; rings above the plain ideal."""
    ran = {model: ran_protocols(results, model) for model in MODELS}
    if not any(len(protocols) > 1 for protocols in ran.values()):
        return None
    figure, axes = grid(len(MODELS), 1, 3.0)
    for (panel,), model in zip(axes, MODELS, strict=True):
        _protocols(panel, model, ran[model])
    label = "quoted (ringed: above the plain ideal)"
    handles = [Line2D([], [], marker="D", linestyle="", color=QUOTED, label=label)]
    for name, (label, colour) in _PROTOCOLS.items():
        if any(name in protocols for protocols in ran.values()):
            look: dict[str, Any] = {"marker": MARKERS["simulated"], "linestyle": ""}
            handles.append(Line2D([], [], color=colour, label=f"simulated: {label}", **look))
    handles.append(Line2D([], [], linestyle="--", color=THEORY, label="plain ideal"))
    handles.append(Line2D([], [], linestyle="-", color=THEORY, label="ideal"))
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def _protocols(axes: Axes, model: str, protocols: dict[str, Protocol]) -> None:
    xs = {place: float(x) for x, place in enumerate(places(model))}
    for place, x in xs.items():
        for form, style in _FORMS.items():
            ideal = theory.speedup_over_k2m1(*place, form)
            axes.hlines(ideal, x - 0.4, x + 0.4, color=THEORY, ls=style, lw=1)
        axes.plot(x - 0.3, quoted(model, *place), "D", color=QUOTED)
    ringed = above(model)
    axes.plot(
        [xs[place] - 0.3 for place in ringed],
        [quoted(model, *place) for place in ringed],
        "o",
        markersize=12,
        markerfacecolor="none",
        markeredgecolor="#222222",
    )
    for index, (name, (_, colour)) in enumerate(_PROTOCOLS.items()):
        if name in protocols:
            axes.plot(
                [x - 0.1 + 0.14 * index for x in xs.values()],
                [protocols[name].ratio(*place) for place in xs],
                MARKERS["simulated"],
                color=colour,
                linestyle="",
            )
    ticks(axes, list(xs.values()), [f"K={K}\nM={M}" for K, M in xs])
    axes.set(title=_title(model, protocols), ylabel="throughput over K=2, M=1")
    axes.set_ylim(bottom=0)


def _title(model: str, protocols: dict[str, Protocol]) -> str:
    """The model, and the size and device of its simulated runs."""
    title = model_name(model)
    if size := another_size(protocols.values()):
        title += f", {size}"
    if "controlled" in protocols:
        title += f": {protocols['controlled'].size}"
    if "half widths, by memory" in protocols:
        title += f"; half widths: {protocols['half widths, by memory'].size}"
    return _wrapped(title)
