"""Table 2 as bars, the best evidence for each cell beside the paper's, and its protocols side by side."""

from math import isnan
from typing import TYPE_CHECKING, Any

from repro.paper import theory
from repro.report.compare import Row, over_k2m1, rows_of
from repro.report.style import QUOTED, grid, model_name, ticks
from repro.report.table2_protocols import above, of
from repro.report.table2_runs import MODELS, NAME, Protocol, places, protocol, quoted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from repro.harness.results import Results

_OURS = "#0072B2"
_IDEAL = "#222222"
HATCHES = {"measured": "", "emulated": "///", "simulated": "..."}
_FORMS: dict[theory.Form, str] = {"plain": "--", "early": "-"}
_PROTOCOLS = {
    "controlled": ("one N", "#0072B2", "o"),
    "by memory": ("largest N that fits", "#D55E00", "^"),
    "half widths, by memory": ("largest N that fits, half widths", "#F0C04A", "v"),
    "by parameters": ("one N, cut by parameters", "#009E73", "s"),
}


def bars(results: "Results", _rows: list[Row]) -> "Figure | None":
    """For every cell: quoted, the best evidence there is (measured, else emulated, else simulated), and the ideal."""
    found = {model: {at: best(results, model, *at) for at in places(model)} for model in MODELS}
    present = {kind for cells in found.values() for kind, _ in cells.values() if kind}
    if not present:
        return None
    figure, axes = grid(len(MODELS), 1, 2.9)
    for (panel,), (model, cells) in zip(axes, found.items(), strict=True):
        _bars(panel, model, cells)
    figure.legend(handles=_patches(present), loc="outside lower center", ncols=2 + len(present))
    return figure


def best(results: "Results", model: str, K: int, M: int) -> tuple[str, float]:
    """(fidelity, throughput over K=2, M=1) of a cell, the most real first; ("", NaN) where there is none.

    Of several measured settings the first of the largest scale; of modelled ones the controlled protocol.
    """
    for row in sorted(rows_of(results, experiment=NAME, model=model, fidelity="measured", K=K, M=M), key=_scale):
        ratio = over_k2m1(results, row).value
        if not isnan(ratio):
            return "measured", ratio
    for kind, name in (("emulated", "emulated"), ("simulated", "controlled")):
        some = protocol(results, model, name)
        if some and not isnan(some.ratio(K, M)):
            return kind, some.ratio(K, M)
    return "", float("nan")


def _scale(row: Row) -> int:
    return ("paper", "node", "laptop", "smoke").index(row["scale"])


def _bars(axes: "Axes", model: str, cells: dict[tuple[int, int], tuple[str, float]]) -> None:
    names = [f"K={K}\nM={M}" for K, M in cells]
    values = [quoted(model, *at) for at in cells]
    drawn = axes.bar([x - 0.28 for x in range(len(cells))], values, 0.26, color=QUOTED)
    axes.bar_label(drawn, [f"{value:g}" for value in values], fontsize=7, padding=1)
    for x, (at, (kind, value)) in enumerate(cells.items()):
        if kind:
            bar = axes.bar(x, value, 0.26, color=_OURS, hatch=HATCHES[kind], edgecolor="white", linewidth=0)
            axes.bar_label(bar, [f"{value:.2f}"], fontsize=7, padding=1)
        ideal = theory.speedup_over_k2m1(*at, "early")
        axes.bar(x + 0.28, ideal, 0.26, facecolor="none", edgecolor=_IDEAL, linewidth=0.9)
    ticks(axes, list(range(len(cells))), names)
    axes.set(title=model_name(model), ylabel="throughput over K=2, M=1")
    axes.margins(y=0.08)
    axes.grid(axis="x", visible=False)


def _patches(present: set[str]) -> list[Any]:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=QUOTED, label="quoted")]
    for kind, hatch in HATCHES.items():
        if kind in present:
            handles.append(Patch(facecolor=_OURS, hatch=hatch, edgecolor="white", linewidth=0, label=kind))
    return [*handles, Patch(facecolor="none", edgecolor=_IDEAL, label="ideal (early recompute)")]


def protocols(results: "Results", _rows: list[Row]) -> "Figure | None":
    """Quoted cells over the simulated ones of every protocol; a star on those above the plain ideal."""
    found = {model: of(results, model) for model in MODELS}
    if not any(len(some) > 1 for some in found.values()):
        return None
    figure, axes = grid(len(MODELS), 1, 3.0)
    for (panel,), (model, some) in zip(axes, found.items(), strict=True):
        _protocols(panel, model, some)
    handles = [axes[0][0].plot([], [], "D", color=QUOTED, label="quoted (ringed: above the plain ideal)")[0]]
    for name, (words, colour, marker) in _PROTOCOLS.items():
        if any(name in some for some in found.values()):
            handles += axes[0][0].plot([], [], marker, color=colour, label=f"simulated: {words}")
    handles += axes[0][0].plot([], [], "--", color=_IDEAL, label="plain ideal, one N")
    handles += axes[0][0].plot([], [], "-", color=_IDEAL, label="early ideal, one N")
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def _protocols(axes: "Axes", model: str, found: dict[str, Protocol]) -> None:
    at = {place: float(x) for x, place in enumerate(places(model))}
    for place, x in at.items():
        for form, style in _FORMS.items():
            axes.hlines(theory.speedup_over_k2m1(*place, form), x - 0.4, x + 0.4, color=_IDEAL, ls=style, lw=1)
        axes.plot(x - 0.3, quoted(model, *place), "D", color=QUOTED)
    ringed = above(model)
    axes.plot(
        [at[place] - 0.3 for place in ringed],
        [quoted(model, *place) for place in ringed],
        "o",
        markersize=12,
        markerfacecolor="none",
        markeredgecolor="#222222",
    )
    for index, (name, (_, colour, marker)) in enumerate(_PROTOCOLS.items()):
        if name in found:
            xs = [x - 0.1 + 0.14 * index for x in at.values()]
            axes.plot(xs, [found[name].ratio(*place) for place in at], marker, color=colour, linestyle="")
    ticks(axes, list(at.values()), [f"K={K}\nM={M}" for K, M in at])
    axes.set(title=model_name(model), ylabel="throughput over K=2, M=1")
    axes.set_ylim(bottom=0)
