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
_SMALLER = style.dots("measured", ms=4.5, markerfacecolor="white")
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
    # K=2, M=1, over which the others are, is 1 whatever is true: a line.
    best = best_evidence(results).query("K != 2 or M != 1")
    smaller = select(measured_cells(results), at_size=False)
    smaller = best[recorded.CELL].merge(smaller, on=recorded.CELL, how="left")
    present, is_smaller = best.dropna(subset="fidelity"), len(smaller.dropna(subset="ratio")) > 0
    if present.empty and not is_smaller:
        return None
    figure, axes = style.grid(1, len(recorded.SIZES), 2.7)
    for panel, model in zip(axes[0], recorded.SIZES, strict=True):
        of_model = select(best, model=model)
        _bars(panel, of_model, select(smaller, model=model))
        ours = of_model.dropna(subset="fidelity")
        sizes = dict.fromkeys(zip(ours["fidelity"], ours["size"], strict=True))
        panel.set_title("; ".join([style.model_name(model), *(" at ".join(s) for s in sizes)]))
    axes[0][0].set_ylabel("throughput over K=2, M=1")
    named = ["quoted", *present["fidelity"].unique()]
    handles: list[Any] = [Patch(facecolor=style.FIDELITIES[name], label=name) for name in named]
    handles.append(Patch(**_OF_IDEAL, label="ideal"))
    if is_smaller:
        handles.append(Line2D([], [], **_SMALLER, label="measured, a smaller model"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


def _bars(axes: Axes, cells: pd.DataFrame, smaller: pd.DataFrame) -> None:
    xs = pd.Series(range(len(cells)), cells.index)
    axes.axhline(1, color=style.SOFT, linewidth=0.9, zorder=0)
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
    xs_of_dots = xs.to_numpy() + _OFFSETS["measured"]
    axes.errorbar(xs_of_dots, smaller["ratio"], error_bars(smaller, "ratio"), **_SMALLER, capsize=2)
    for x in xs[1:]:
        axes.axvline(x - 0.5, color=style.IDLE, linewidth=0.8, zorder=0)
    axes.set_xlim(-0.5, len(cells) - 0.5)
    names = [f"K={K}\nM={M}" for K, M in zip(cells["K"], cells["M"], strict=True)]
    style.ticks(axes, list(xs), names)
    axes.margins(y=0.08)
    axes.grid(axis="x", visible=False)


def divided(quotients: pd.DataFrame) -> Figure | None:
    """Gains over the ideal's, all on one axis: 1 is a pipeline that loses nothing."""
    models = [*quotients["model"].unique()]
    if not models:
        return None
    shares = quotients.filter(regex="quoted|ratio").astype(float).div(quotients["ideal"], axis=0)
    shares = quotients.assign(**shares)
    figure, axes = style.grid(len(models), 2, 2.4)
    for (left, right), model in zip(axes, models, strict=True):
        of_model = select(shares, model=model)
        _gains(left, select(of_model, by_M=True))
        _gains(right, select(of_model, by_M=False))
        left.set_title(f"{style.model_name(model)}: more micro-batches, M=32 over M=4")
        right.set_title(f"{style.model_name(model)}: more stages, over K=2 at the same M")
        left.set_ylabel("gain over\nthe ideal's gain")
    looks = (style.dots(fidelity, label=fidelity) for fidelity in ("quoted", "simulated"))
    ideal = Line2D([], [], color=style.THEORY, lw=1.2, label="ideal")
    handles = [*(Line2D([], [], **look) for look in looks), ideal]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def _gains(axes: Axes, lines: pd.DataFrame) -> None:
    xs = pd.Series(range(len(lines)), lines.index, dtype=float)
    axes.axhline(1, color=style.THEORY, lw=1.2)
    axes.plot(xs - 0.12, lines["quoted"], **style.dots("quoted"))
    look = style.dots("simulated") | style.MODEL_ERROR
    axes.errorbar(xs + 0.12, lines["ratio"], error_bars(lines, "ratio"), **look)
    style.ticks(axes, [*xs], [cell.replace(", ", "\n") for cell in lines["cell"]])
    axes.set(xlim=(-0.5, len(lines) - 0.5), ylim=(0, 1.6))
    axes.grid(axis="x", visible=False)
