"""The bubble (arXiv:1811.06965v5, section 2.3): closed forms beside recorded steps."""

from collections.abc import Iterator, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from repro.experiments.bubble.runs import ABOUT, NAME
from repro.harness.frame import Frame, runs_frame, select
from repro.harness.results import Results
from repro.harness.text import percent
from repro.paper import theory
from repro.report.claim import Claim, Fidelity, number
from repro.report.figures import Picture
from repro.report.framed import framed, or_status, with_parts
from repro.report.style import KINDS, SOFT, THEORY, dots, in_pairs, legend_below, over_m
from repro.report.table import Table

KS = (2, 4, 8)  # of the paper's tables
NEGLIGIBLE = (5, 10)  # percent of K x step, as which the paper's word is read
POINT = ["where", "K"]
_SIZES = {"simulated": 8, "emulated": 5, "measured": 4.5}  # of markers; the larger lie beneath


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
        why = f"our reading: at most {readings} %; {idle[0]} with all other waiting" if idle else ""
        yield Claim(
            "Section 2.3, bubble",
            f"bubble, share of a step, K={K}, M={4 * K}",
            [number(100 * share) for share in of["bubble"]],
            fidelity,
            most=NEGLIGIBLE,
            says="\N{LEFT DOUBLE QUOTATION MARK}almost negligible\N{RIGHT DOUBLE QUOTATION MARK}",
            unit="%",
            why=why,
            point=(K, 4 * K),
        )


def figures(results: Results) -> Iterator[Picture]:
    """Of the place with the most runs."""
    frame = select(steps(results), done=True)
    frame = select(frame, where=[*frame["where"].mode()[:1]])
    yield "curves", curves(frame), {}


def curves(frame: Frame) -> Figure | None:
    Ks = sorted(set(frame["K"]))
    if not Ks:
        return None
    figure, panels = in_pairs(len(Ks), 2.7)
    Ms = sorted(set(frame["M"]))
    for axes, K in zip(panels, Ks, strict=True):
        _panel(axes, K, select(frame, K=K), Ms)
    legend_below(figure, *panels)
    return figure


def _panel(axes: Axes, K: int, runs: Frame, Ms: Sequence[int]) -> None:
    dense = [M for M in range(Ms[0], Ms[-1] + 1) if M <= 16 or M % 4 == 0]
    plain = [100 * theory.bubble_over_total(K, M) for M in dense]
    early = [100 * theory.bubble(K, M, "early") for M in dense]
    theory_look: dict[str, Any] = {"color": THEORY, "linewidth": 1.1}
    axes.plot(dense, plain, "--", label="plain: (K-1)/(M+K-1)", **theory_look)
    axes.plot(dense, early, ":", label="early recompute", **theory_look)
    for fidelity, size in _SIZES.items():
        points = select(runs, fidelity=fidelity)
        if points.empty:  # has no place in the legend
            continue
        look = dots(fidelity, markersize=size)
        axes.plot(points["M"], 100 * points["idle"], **look, label=fidelity)
        if fidelity == "measured":
            look |= {"markerfacecolor": "white", "label": "measured bubble"}
            axes.plot(points["M"], 100 * points["bubble"], **look)
    axes.axvline(4 * K, color=SOFT, linewidth=0.9, zorder=1)
    axes.text(4 * K * 1.06, 97, f"M=4K={4 * K}", fontsize=8.5, color=KINDS["U"], va="top")
    over_m(axes, Ms)
    axes.set(title=f"K={K}", ylabel="idle/total (%)", ylim=(0, 100))
