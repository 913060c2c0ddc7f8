"""Tables 2 and 3 under each cut and mini-batch, which the paper does not print."""

from functools import lru_cache

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from experiments.table2 import recorded
from experiments.table2.runs import NAME as TABLE2
from experiments.table2.runs import NS
from experiments.table3.runs import ABOUT, NAME, VARIED
from repro.claims.all_claims import CELL as TOLERANCE
from repro.harness.frame import Frame, runs_frame, select
from repro.harness.results import Results, Run
from repro.harness.sizes import NARROW, TABLE3_AMOEBANET, TABLE3_NARROW, TABLE3_TRANSFORMER
from repro.paper import numbers, theory
from repro.report import style
from repro.report.compare import fits
from repro.report.framed import framed
from repro.report.table import Cell, Table

SIZES = {"amoebanet-d": TABLE3_AMOEBANET["paper"], "transformer": TABLE3_TRANSFORMER["paper"]}
TITLES = {TABLE2: "Table 2", NAME: "Table 3"}
# By modelled time, as everywhere else here; by the paper's rule; by that of Lingvo's code.
CUTS = {
    None: "time",
    "minimum-variance": "variance of FLOPs",
    "cumulative-share": "share of FLOPs (Lingvo)",
}
TEXTBOOK = "textbook"  # a null model, without cut and mini-batch
LARGEST = "largest that fits"
HALF = ", half widths"
FULL_WIDTHS = "transformer-by-memory"  # of Table 2, which does not fit at K=2
CELLS = ["experiment", "model", "K", "M"]
SERIES = ["experiment", "model", "N", "cut"]


@lru_cache(maxsize=1)
def varied(results: Results) -> Frame:
    """A line for each printed cell, cut and mini-batch, but for the cells that print 1.

    `ratio` is over the cell that prints 1, `off` that over the quoted one. `fits` says whether both
    cells are counted to fit their device.
    """
    frame = runs_frame(results, TABLE2, NAME, fidelity="simulated", remat="always", done=True)
    frame = frame.loc[[_belongs(run) for run in frame["run"]], [*CELLS, "throughput", "run"]]
    specs = [run.spec for run in frame["run"]]
    frame["cut"] = [CUTS[spec.partitioner] for spec in specs]
    narrow = NARROW["paper"], TABLE3_NARROW["paper"]
    frame["size"] = [LARGEST if spec.memory else str(spec.N) for spec in specs]
    frame["N"] = frame["size"] + [HALF * (spec.model_args in narrow) for spec in specs]
    frame["fits"] = frame["run"].map(fits)
    frame = _printed().merge(frame, on=CELLS).drop_duplicates([*SERIES, "K", "M"])
    base = select(frame, quoted=1)[[*SERIES, "throughput", "fits"]]
    frame = frame.merge(base, on=SERIES, suffixes=("", " of base"))
    frame["ratio"] = frame["throughput"] / frame["throughput of base"]
    frame["fits"] = frame["fits"] & frame["fits of base"]
    frame["off"] = frame["ratio"] / frame["quoted"]
    frame["size"] = frame["size"].map([*map(str, NS), LARGEST].index)
    frame = frame.loc[frame["quoted"] != 1]
    return frame.sort_values(["experiment", "model", "size"], kind="stable")


def _belongs(run: Run) -> bool:
    if run.experiment == NAME:
        of_size = run.spec.model_args in (SIZES.get(run.model), TABLE3_NARROW["paper"])
        return run.group.endswith(VARIED) and of_size
    return run.group != FULL_WIDTHS and recorded.papers_size(run.spec)


def _printed() -> Frame:
    lines = []
    for name, table in ((TABLE2, numbers.table2()), (NAME, numbers.table3())):
        for cell in table:
            base = theory.speedup_over_k1(2, 1 if name == TABLE2 else cell.M, "plain")
            ratio = theory.speedup_over_k1(cell.K, cell.M, "plain") / base
            place = (name, cell.model, cell.K, cell.M)
            lines.append((*place, float(cell.value), ratio / cell.value))
    return pd.DataFrame(lines, columns=[*CELLS, "quoted", TEXTBOOK])


def settings(results: Results, model: str, K: int) -> dict[str, float]:
    """A cell of Table 3 under each cut and mini-batch that fits: `cut by time, N=128` -> ratio."""
    lines = select(varied(results), experiment=NAME, model=model, K=K, fits=True)
    names = map(named, lines["cut"], lines["N"])
    return dict(zip(names, lines["ratio"], strict=True))


def named(cut: str, N: object) -> str:
    return f"cut by {cut}, N={N}"


def table(results: Results) -> Table:
    """A line for each table, model and mini-batch: how near each cut is, beside the textbook."""
    lines = []
    for place, cells in varied(results).groupby(SERIES[:-1], sort=False):
        name, model, N = place
        line: dict[str, object] = {"table": TITLES[name], "model": style.model_name(model), "N": N}
        once = cells.drop_duplicates(CELLS)
        line[TEXTBOOK] = _score(once.assign(off=once[TEXTBOOK], fits=True))
        line |= {cut: _score(of_cut) for cut, of_cut in cells.groupby("cut", sort=False)}
        lines.append(line)
    frame = pd.DataFrame(lines, columns=["table", "model", "N", TEXTBOOK, *CUTS.values()])
    return framed(results, f"{NAME}_cuts", frame, ABOUT, tolerance=TOLERANCE)


def _score(cells: Frame) -> Cell:
    """The median gap, and how many cells are within the tolerance: `13.0% (3 of 8)`."""
    gaps = (cells["off"] - 1).abs()
    star = "" if cells["fits"].all() else " *"
    text = f"{gaps.median():.1%} ({(gaps <= TOLERANCE).sum()} of {len(gaps)}){star}"
    return Cell(gaps.median(), text)


def figure(results: Results) -> Figure | None:
    cells = varied(results)
    if cells.empty:
        return None
    # Half widths change Table 3 by less than 1 %.
    half = cells["N"].str.endswith(HALF) & (cells["experiment"] == NAME)
    shown = cells.loc[~half]
    figure, panels = style.grid(2, 2, 2.1)
    for row, model in zip(panels, SIZES, strict=True):
        for axes, (name, title) in zip(row, TITLES.items(), strict=True):
            _panel(axes, select(shown, experiment=name, model=model))
            axes.set_title(f"{title}, {style.model_name(model)}")
        row[0].set_ylabel("simulated over quoted")
    hollow = Line2D([], [], **style.dots("simulated", mfc="white", label="counted not to fit"))
    within = Patch(color=style.IDLE, label=f"within {TOLERANCE:.0%}")
    figure.legend(handles=[hollow, within], loc="outside lower center", ncols=2)
    return figure


def _panel(axes: Axes, cells: Frame) -> None:
    axes.axhspan(1 - TOLERANCE, 1 + TOLERANCE, color=style.IDLE, zorder=0)
    textbook = cells.drop_duplicates(CELLS)[TEXTBOOK]
    axes.plot([0] * len(textbook), textbook, "_", color=style.THEORY)
    below = axes.get_xaxis_transform()
    names = {0.0: "text-\nbook"}
    for place, cut in enumerate(CUTS.values()):
        of_cut, left = select(cells, cut=cut), 1.8 + 5.5 * place
        for fit, face in ((True, None), (False, "white")):
            dots = select(of_cut, fits=fit)
            look = style.dots("simulated", ms=4, markerfacecolor=face)
            axes.plot(left + 1.2 * dots["size"], dots["off"], **look)
        names |= {left + 1.2 * step: str(N) for step, N in enumerate([*NS, "fits"])}
        name = cut.replace(" of FLOPs", "")
        axes.annotate(name, (left + 1.8, -0.19), xycoords=below, ha="center", va="top", fontsize=8)
    style.ticks(axes, [*names], [*names.values()])
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(axis="x", visible=False)
    axes.set(yscale="log", ylim=(0.47, 2.1), xlim=(-0.9, 17.2))
    axes.set_yticks([0.5, 0.7, 1, 1.4, 2], ["0.5", "0.7", "1", "1.4", "2"])
    axes.minorticks_off()
