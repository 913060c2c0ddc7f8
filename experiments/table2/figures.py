"""Table 2 as bars beside the paper's and the ideal, and divided by other cells than K=2, M=1."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from experiments.table2 import recorded
from experiments.table2.runs import NAME
from repro.harness.frame import runs_frame, select
from repro.harness.results import Results
from repro.harness.spec import SCALES
from repro.report import style
from repro.report.framed import error_bars, with_ratio

_WIDTH, _NARROW = 0.26, 0.15  # of a bar, and of the ideal; groups stand 1 apart
# Where the parts of a group stand, beside its middle.
_OFFSETS = {"quoted": -0.32, "ours": -0.05, "ideal": 0.165, "measured": 0.32}
_FULL_SIZE = "the paper's size"
_OF_IDEAL: dict[str, Any] = {"facecolor": "none", "edgecolor": style.THEORY}


def measured_cells(results: Results) -> pd.DataFrame:
    """The measured cells over K=2, M=1, of the largest scale for each size of the model."""
    frame = runs_frame(results, NAME, fidelity="measured")
    frame = with_ratio(results, frame, "ratio", K=2, M=1).dropna(subset="ratio")
    frame["at_size"] = frame["run"].map(recorded.at_papers_size)
    frame["rank"] = [SCALES.index(scale) for scale in frame["scale"]]
    frame = frame.sort_values("rank", ascending=False, kind="stable")
    return frame.drop_duplicates([*recorded.CELL, "at_size"])


def best_evidence(results: Results) -> pd.DataFrame:
    """For each printed cell: measured at the paper's size, else the headline simulation."""
    simulated = select(recorded.simulated_cells(results), headline=True).dropna(subset="ratio")
    half = simulated["protocol"] == recorded.NARROW_BY_MEMORY
    simulated["size"] = half.map(lambda half: "half of Table 1's widths" if half else _FULL_SIZE)
    measured = select(measured_cells(results), at_size=True).assign(size=_FULL_SIZE)
    columns = [*recorded.CELL, "fidelity", "size", "ratio", "ratio: low", "ratio: high"]
    best = pd.concat([measured, simulated]).loc[:, columns].drop_duplicates(recorded.CELL)
    return recorded.printed().merge(best, how="left", on=recorded.CELL)


def bars(results: Results) -> Figure | None:
    best = best_evidence(results)
    smaller = select(measured_cells(results), at_size=False)
    smaller = recorded.printed()[recorded.CELL].merge(smaller, on=recorded.CELL, how="left")
    present = best.dropna(subset="fidelity")
    scales = sorted({*smaller["scale"].dropna()}, key=SCALES.index, reverse=True)
    if present.empty and not scales:
        return None
    # As low as its numbers can be read: it stands on the first screen, below the verdicts.
    figure, axes = style.grid(1, len(recorded.SIZES), 2.2)
    for panel, model in zip(axes[0], recorded.SIZES, strict=True):
        _bars(panel, select(best, model=model), select(smaller, model=model))
        panel.set_title(style.model_name(model))
    axes[0][0].set_ylabel("throughput over K=2, M=1")
    handles: list[Any] = [Patch(facecolor=style.QUOTED, label="quoted")]
    for fidelity, cells in present.groupby("fidelity"):
        label = f"{fidelity}, {' or '.join(cells['size'].unique())}"
        handles.append(Patch(facecolor=style.FIDELITIES[str(fidelity)], label=label))
    handles.append(Patch(**_OF_IDEAL, label="ideal"))
    if scales:
        label = f"measured, {' or '.join(scales)} size: a smaller model"
        handles.append(Line2D([], [], **style.dots("measured", label=label)))
    figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(handles)))
    return figure


def _bars(axes: Axes, cells: pd.DataFrame, smaller: pd.DataFrame) -> None:
    xs = pd.Series(range(len(cells)), cells.index)
    axes.bar(xs + _OFFSETS["quoted"], cells["quoted"], _WIDTH, color=style.QUOTED)
    for fidelity, ours in cells.groupby("fidelity"):
        axes.bar(
            xs[ours.index] + _OFFSETS["ours"],
            ours["ratio"],
            _WIDTH,
            color=style.FIDELITIES[str(fidelity)],
            yerr=error_bars(ours, "ratio"),
            error_kw=style.MODEL_ERROR,
        )
    axes.bar(xs + _OFFSETS["ideal"], cells["ideal"], _NARROW, linewidth=0.9, **_OF_IDEAL)
    look = style.dots("measured", ms=4.5, capsize=2)
    xs_of_dots = xs + _OFFSETS["measured"]
    axes.errorbar(xs_of_dots, smaller["ratio"], error_bars(smaller, "ratio"), **look)
    for x in xs[1:]:
        axes.axvline(x - 0.5, color=style.IDLE, linewidth=0.8, zorder=0)
    axes.set_xlim(-0.5, len(cells) - 0.5)
    names = [f"K={K}\nM={M}" for K, M in zip(cells["K"], cells["M"], strict=True)]
    style.ticks(axes, list(xs), names)
    axes.margins(y=0.08)
    axes.grid(axis="x", visible=False)


def divided(quotients: pd.DataFrame) -> Figure | None:
    models = [*quotients["model"].unique()]
    if not models:
        return None
    figure, axes = style.grid(len(models), 2, 2.7)
    for (left, right), model in zip(axes, models, strict=True):
        of_model = select(quotients, model=model)
        _quotients(left, select(of_model, by_M=True))
        left.set(title=f"{style.model_name(model)}: M=32 over M=4", ylabel="throughput ratio")
        _quotients(right, select(of_model, by_M=False))
        right.set(title=f"{style.model_name(model)}: over K=2 at the same M")
    looks = (style.dots(fidelity, label=fidelity) for fidelity in ("quoted", "simulated"))
    quoted, simulated = (Line2D([], [], **look) for look in looks)
    ideal = Line2D([], [], color=style.THEORY, lw=1.2, label="ideal")
    figure.legend(handles=[quoted, ideal, simulated], loc="outside lower center", ncols=3)
    return figure


def _quotients(axes: Axes, lines: pd.DataFrame) -> None:
    xs = pd.Series(range(len(lines)), lines.index, dtype=float)
    axes.hlines(lines["ideal"], xs - 0.35, xs + 0.35, color=style.THEORY, lw=1.2)
    axes.plot(xs - 0.12, lines["quoted"], **style.dots("quoted"))
    look = style.dots("simulated") | style.MODEL_ERROR
    axes.errorbar(xs + 0.12, lines["ratio"], error_bars(lines, "ratio"), **look)
    style.ticks(axes, [*xs], [cell.replace(", ", "\n") for cell in lines["cell"]])
    axes.set_ylim(bottom=0.9)
    axes.margins(x=0.05)
    axes.grid(axis="x", visible=False)
