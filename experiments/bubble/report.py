"""The bubble (arXiv:1811.06965v5, section 2.3): closed forms beside recorded steps."""

from collections.abc import Iterator, Sequence
from typing import Any

from matplotlib.axes import Axes

from repro.experiments.bubble.runs import ABOUT, NAME
from repro.harness.frame import Frame, runs_frame, select
from repro.harness.results import Results
from repro.harness.text import TIMES, percent
from repro.paper import theory
from repro.report.claim import Claim, Fidelity, number
from repro.report.figures import Picture
from repro.report.framed import framed, or_status, with_parts
from repro.report.style import KINDS, SOFT, THEORY, dots, in_pairs, legend_below, over_m
from repro.report.table import Table

KS = (2, 4, 8)  # of the paper's tables
NEGLIGIBLE = (5, 10)  # percent of K x step, as which the paper's word is read
POINT = ["where", "K"]
_FORMS: dict[theory.Form, tuple[str, str]] = {
    "plain": ("--", "(K-1)/(M+K-1)"),
    "early": (":", "early recompute"),
}
_SIZES = {"emulated": 6, "measured": 4.5}  # of markers; the larger lie beneath


def steps(results: Results) -> Frame:
    """A line for each run: its idle share, the bubble's part of it, and the closed forms."""
    frame = with_parts(runs_frame(results, NAME))
    points = list(zip(frame["K"], frame["M"], strict=True))
    plain = [theory.bubble_over_total(K, M) for K, M in points]
    early = [theory.bubble(K, M, "early") for K, M in points]
    frame = frame.assign(**{"theory plain": plain, "theory early": early})
    return frame.rename(columns={"idle_over_total": "idle"})


def tables(results: Results) -> list[Table]:
    frame = steps(results)
    frame = frame[frame["M"] == 4 * frame["K"]]
    table = frame.groupby(POINT)[["theory plain", "theory early"]].first()
    for fidelity in ("emulated", "measured"):
        of = select(frame, fidelity=fidelity)
        for share in ("bubble", "idle"):
            shown = of.assign(share=or_status(of, share)).groupby(POINT)["share"].first()
            table[f"{fidelity} {share}"] = shown
    return [framed(NAME, table.reset_index(), ABOUT)]


def claims(results: Results) -> Iterator[Claim]:
    """The bubble of a measured step where there is one, else of an emulated one."""
    frame = select(steps(results), done=True).dropna(subset="bubble")
    readings = " or ".join(map(str, NEGLIGIBLE))
    for K in reversed(KS):
        of = select(frame, K=K, M=4 * K)
        fidelity: Fidelity = "measured" if "measured" in set(of["fidelity"]) else "emulated"
        of = select(of, fidelity=fidelity)
        idle = [percent(share) for share in of["idle"]]
        count = max((len(run.rounds) for run in of["run"]), default=0)
        rounds = f"{count} round{'s' * (count > 1)}"
        yield Claim(
            "Section 2.3, bubble",
            f"bubble, share of a step, K={K}, M={4 * K}",
            [number(100 * share) for share in of["bubble"]],
            fidelity,
            most=NEGLIGIBLE,
            says="\N{LEFT DOUBLE QUOTATION MARK}almost negligible\N{RIGHT DOUBLE QUOTATION MARK}",
            unit="%",
            beside=f"{idle[0]} with all other waiting" if idle else "",
            why=f"{rounds}, no interval; our limit: {readings} %" if idle else "",
            point=(K, 4 * K),
        )


def figures(results: Results) -> Iterator[Picture]:
    """Of the place with the most runs."""
    frame = select(steps(results), fidelity=[*_SIZES], done=True).dropna(subset="bubble")
    frame = select(frame, where=[*frame["where"].mode()[:1]])
    Ks = sorted(set(frame["K"]))
    if Ks:
        figure, panels = in_pairs(len(Ks), 2.7)
        for axes, K in zip(panels, Ks, strict=True):
            _panel(axes, K, select(frame, K=K), sorted(set(frame["M"])))
        legend_below(figure, *panels)
        yield "curves", figure, {}


def _panel(axes: Axes, K: int, runs: Frame, Ms: Sequence[int]) -> None:
    theory_look: dict[str, Any] = {"color": THEORY, "linewidth": 1.1}
    dense = range(Ms[0], Ms[-1] + 1)
    for form, (line, name) in _FORMS.items():
        shares = [100 * theory.bubble(K, M, form) for M in dense]
        axes.plot(dense, shares, line, label=name, **theory_look)
    for fidelity, size in _SIZES.items():
        points = select(runs, fidelity=fidelity)
        if points.empty:  # has no place in the legend
            continue
        look = dots(fidelity, markersize=size)
        axes.plot(points["M"], 100 * points["bubble"], **look, label=f"{fidelity} bubble")
        look |= {"markerfacecolor": "white", "label": f"{fidelity} idle"}
        axes.plot(points["M"], 100 * points["idle"], **look)
    axes.axvline(4 * K, color=SOFT, linewidth=0.9, zorder=1)
    text = f"M = 4 {TIMES} K = {4 * K}"
    axes.text(4 * K * 0.94, 97, text, fontsize=8.5, color=KINDS["U"], ha="right", va="top")
    over_m(axes, Ms)
    axes.set(title=f"K={K}", ylabel=f"share of K {TIMES} step (%)", ylim=(0, 100))
