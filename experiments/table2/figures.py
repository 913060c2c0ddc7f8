"""Table 2 as bars, the best evidence for each cell beside the paper's, and its protocols side by side."""

import textwrap
from math import isnan
from typing import TYPE_CHECKING, Any

from experiments.table2.protocols import above, of
from experiments.table2.recorded import (
    MODELS,
    NAME,
    Protocol,
    another_size,
    at_papers_size,
    places,
    protocol,
    quoted,
)
from repro.harness.results import Results, Run
from repro.paper import theory
from repro.report.compare import rows_of
from repro.report.ratio import Ratio, over_k2m1
from repro.report.style import FIDELITIES, MARKERS, QUOTED, THEORY, grid, model_name, ticks
from repro.report.texts import IDEAL, PLAIN

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_WIDTH = 0.21  # of a bar; groups stand 1 apart
# of a group's parts, beside its middle
_PLACES = {"quoted": -0.33, "ours": -0.11, "ideal": 0.11, "measured": 0.28}
_LINE = 96  # characters that fit a panel's title
_FORMS: dict[theory.Form, str] = {"plain": "--", "early": "-"}
# fidelity -> its protocol, the most real first
_NAMES = {"emulated": "emulated", "simulated": "controlled"}
_PROTOCOLS = {  # all simulated, so of one marker
    "controlled": ("one N", FIDELITIES["simulated"]),
    "by memory": ("largest N that fits", "#D55E00"),
    "half widths, by memory": ("largest N that fits, half widths", "#F0C04A"),
    "by parameters": ("one N, cut by parameters", "#009E73"),
}


def bars(results: Results, _rows: list[Run]) -> "Figure | None":
    """For every cell: quoted, the best evidence, the ideal; measured ones of another size as dots."""
    found = {model: {at: best(results, model, *at) for at in places(model)} for model in MODELS}
    small = {
        model: {at: one for at in places(model) if (one := smaller(results, model, *at))}
        for model in MODELS
    }
    present = _present(results, found)
    scales = dict.fromkeys(scale for cells in small.values() for scale, _ in cells.values())
    if not present and not scales:
        return None
    figure, axes = grid(len(MODELS), 1, 2.9)
    for (panel,), (model, cells) in zip(axes, found.items(), strict=True):
        _bars(panel, model, cells)
        _dots(panel, model, small[model])
        panel.set_title(_wrapped("; ".join([model_name(model), *_about(results, model, cells)])))
    handles = _patches(present, list(scales))
    figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(handles)))
    return figure


def best(results: Results, model: str, K: int, M: int) -> tuple[str, float]:
    """(fidelity, throughput over K=2, M=1) of a cell, the most real first; ("", NaN) for none.

    What is measured counts here at the paper's size alone; what is modelled is of that but at scale
    smoke.
    """
    for row in _measured(results, model, K, M):
        if at_papers_size(results, row):
            return "measured", over_k2m1(results, row).value
    for kind, name in _NAMES.items():
        some = protocol(results, model, name)
        if some and not isnan(some.ratio(K, M)):
            return kind, some.ratio(K, M)
    return "", float("nan")


def smaller(results: Results, model: str, K: int, M: int) -> tuple[str, Ratio] | None:
    """(scale, ratio) of the cell measured with another model than the paper's, of the largest scale."""
    rows = [row for row in _measured(results, model, K, M) if not at_papers_size(results, row)]
    return (rows[0].scale, over_k2m1(results, rows[0])) if rows else None


def _measured(results: Results, model: str, K: int, M: int) -> list[Run]:
    """Those with a baseline, of the largest scale first."""
    rows = rows_of(results, experiment=NAME, model=model, fidelity="measured", K=K, M=M)
    return sorted((row for row in rows if not isnan(over_k2m1(results, row).value)), key=_scale)


def _scale(row: Run) -> int:
    return ("paper", "node", "laptop", "smoke").index(row.scale)


def _about(
    results: Results, model: str, cells: dict[tuple[int, int], tuple[str, float]]
) -> list[str]:
    """`emulated L=48, N=32 on tpu-v3`: what our bars are of."""
    kinds = dict.fromkeys(kind for kind, _ in cells.values() if kind in _NAMES)
    return [_sized(kind, protocol(results, model, _NAMES[kind])) for kind in kinds]


def _sized(kind: str, some: Protocol) -> str:
    """`simulated, smoke size: L=6, N=32 on tpu-v3`; of the paper's size without that word."""
    return f"{', '.join(filter(None, (kind, another_size([some]))))}: {some.size}"


def _present(
    results: Results, found: dict[str, dict[tuple[int, int], tuple[str, float]]]
) -> dict[str, str]:
    """Fidelity of our bars -> the sizes of their models: `the paper's size or smoke size`."""
    sizes: dict[str, dict[str, None]] = {}
    for model, cells in found.items():
        for kind in dict.fromkeys(kind for kind, _ in cells.values() if kind):
            size = another_size([protocol(results, model, _NAMES[kind])]) if kind in _NAMES else ""
            sizes.setdefault(kind, {})[size or "the paper's size"] = None
    return {kind: " or ".join(some) for kind, some in sizes.items()}


def about_bars(results: Results) -> str:
    """The caption of the bars."""
    size = another_size(
        protocol(results, model, name) for model in MODELS for name in _NAMES.values()
    )
    words = (
        f"modelled at {size}, which shows nothing about the paper"
        if size
        else "at the paper's size"
    )
    return (
        f"Table 2 as bars, throughput over K=2, M=1: quoted, the best evidence {words} (measured, "
        "else emulated, else simulated) and the ideal. Dots at a group's right, with their "
        f"intervals: measured with a smaller model, whose ratios can show a trend. {IDEAL}"
    )


def about_protocols(results: Results) -> str:
    """The caption of the protocols."""
    size = another_size(some for model in MODELS for some in of(results, model).values())
    words = (
        f"simulated at {size}, which shows nothing about the paper"
        if size
        else "simulated at the paper's size"
    )
    return (
        f"Table 2 under other protocols, {words}, each over its own K=2, M=1. No pipeline at one "
        f"mini-batch is above the plain ideal but by recomputing early. {IDEAL} {PLAIN}"
    )


def _wrapped(title: str) -> str:
    """On as many lines as a panel's width takes."""
    return textwrap.fill(title, _LINE, break_on_hyphens=False)


def _bars(axes: "Axes", model: str, cells: dict[tuple[int, int], tuple[str, float]]) -> None:
    """Three bars a cell: quoted, ours in its fidelity's colour, and the ideal without filling."""
    label: dict[str, Any] = {"fontsize": 6.5, "padding": 1}
    values = [quoted(model, *at) for at in cells]
    drawn = axes.bar(
        [x + _PLACES["quoted"] for x in range(len(cells))], values, _WIDTH, color=QUOTED
    )
    axes.bar_label(drawn, [f"{value:g}" for value in values], **label)
    for x, (at, (kind, value)) in enumerate(cells.items()):
        if kind:
            bar = axes.bar(x + _PLACES["ours"], value, _WIDTH, color=FIDELITIES[kind])
            axes.bar_label(bar, [f"{value:.2f}"], **label)
        ideal = theory.speedup_over_k2m1(*at, "early")
        bar = axes.bar(
            x + _PLACES["ideal"], ideal, _WIDTH, facecolor="none", edgecolor=THEORY, linewidth=0.9
        )
        axes.bar_label(bar, [f"{ideal:.2f}"], **label)
    for x in range(1, len(cells)):
        axes.axvline(x - 0.5, color="#DDDDDD", linewidth=0.7, zorder=0)
    axes.set_xlim(-0.5, len(cells) - 0.5)
    ticks(axes, list(range(len(cells))), [f"K={K}\nM={M}" for K, M in cells])
    axes.set(ylabel="throughput over K=2, M=1")
    axes.margins(y=0.08)
    axes.grid(axis="x", visible=False)


def _dots(axes: "Axes", model: str, cells: dict[tuple[int, int], tuple[str, Ratio]]) -> None:
    """Measured cells of a smaller model beside the bars, each with its interval."""
    order = places(model)
    for at, (_, one) in cells.items():
        x = order.index(at) + _PLACES["measured"]
        bounds = [0.0, 0.0] if isnan(one.low) else [one.value - one.low, one.high - one.value]
        errors = [[bounds[0]], [bounds[1]]]
        axes.errorbar(
            x,
            one.value,
            errors,
            fmt=MARKERS["measured"],
            ms=4.5,
            color=FIDELITIES["measured"],
            capsize=2,
        )


def _patches(present: dict[str, str], scales: list[str]) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [Patch(facecolor=QUOTED, label="quoted")]
    handles += [
        Patch(facecolor=colour, label=f"{kind}, {present[kind]}")
        for kind, colour in FIDELITIES.items()
        if kind in present
    ]
    handles.append(Patch(facecolor="none", edgecolor=THEORY, label="ideal"))
    if scales:
        words = f"measured, {' or '.join(scales)} size: a smaller model"
        look: dict[str, Any] = {
            "marker": MARKERS["measured"],
            "color": FIDELITIES["measured"],
            "linestyle": "",
        }
        handles.append(Line2D([], [], label=words, **look))
    return handles


def protocols(results: Results, _rows: list[Run]) -> "Figure | None":
    """Quoted cells over the simulated ones of every protocol; a ring about those above the plain ideal."""
    found = {model: of(results, model) for model in MODELS}
    if not any(len(some) > 1 for some in found.values()):
        return None
    figure, axes = grid(len(MODELS), 1, 3.0)
    for (panel,), (model, some) in zip(axes, found.items(), strict=True):
        _protocols(panel, model, some)
    handles = [
        axes[0][0].plot([], [], "D", color=QUOTED, label="quoted (ringed: above the plain ideal)")[
            0
        ]
    ]
    for name, (words, colour) in _PROTOCOLS.items():
        if any(name in some for some in found.values()):
            handles += axes[0][0].plot(
                [], [], MARKERS["simulated"], color=colour, label=f"simulated: {words}"
            )
    handles += axes[0][0].plot([], [], "--", color=THEORY, label="plain ideal")
    handles += axes[0][0].plot([], [], "-", color=THEORY, label="ideal")
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def _protocols(axes: "Axes", model: str, found: dict[str, Protocol]) -> None:
    at = {place: float(x) for x, place in enumerate(places(model))}
    for place, x in at.items():
        for form, style in _FORMS.items():
            axes.hlines(
                theory.speedup_over_k2m1(*place, form),
                x - 0.4,
                x + 0.4,
                color=THEORY,
                ls=style,
                lw=1,
            )
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
    for index, (name, (_, colour)) in enumerate(_PROTOCOLS.items()):
        if name in found:
            xs = [x - 0.1 + 0.14 * index for x in at.values()]
            axes.plot(
                xs,
                [found[name].ratio(*place) for place in at],
                MARKERS["simulated"],
                color=colour,
                linestyle="",
            )
    ticks(axes, list(at.values()), [f"K={K}\nM={M}" for K, M in at])
    axes.set(title=_title(model, found), ylabel="throughput over K=2, M=1")
    axes.set_ylim(bottom=0)


def _title(model: str, found: dict[str, Protocol]) -> str:
    """The model, and the size and device of its simulated runs."""
    sizes = dict.fromkeys(
        found[name].size for name in ("controlled", "half widths, by memory") if name in found
    )
    name = ", ".join(filter(None, (model_name(model), another_size(found.values()))))
    return _wrapped("; half widths: ".join([f"{name}: {next(iter(sizes), '')}", *list(sizes)[1:]]))
