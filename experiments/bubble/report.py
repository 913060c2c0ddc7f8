"""The bubble (arXiv:1811.06965v5, section 2.3): closed forms beside recorded steps."""

from collections.abc import Iterator
from dataclasses import replace
from math import ceil, nan
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.bubble.runs import ABOUT, NAME
from repro.claims.all_claims import KS, cell_id, chosen, verdict_on
from repro.claims.all_claims import NEGLIGIBLE as NEGLIGIBLE_PERCENT
from repro.claims.claim import Evidence
from repro.gpipe.schedule.timeline import Timeline
from repro.harness.frame import Frame, runs_frame, select
from repro.harness.results import Results
from repro.harness.statistics import interval_of_sets
from repro.paper import theory
from repro.report.compare import beside_paper
from repro.report.declared import Shown
from repro.report.figures import Picture
from repro.report.framed import framed, or_status
from repro.report.style import KINDS, SOFT, THEORY, dots, in_pairs, legend, over_m
from repro.report.table import Table

NEGLIGIBLE = NEGLIGIBLE_PERCENT / 100  # of K x step
LEAST = f"M for {NEGLIGIBLE:.0%}"
SHOWN = Shown(
    f"{NAME}_at_4k",
    f"K | M | theory plain | simulated early | emulated early | {LEAST} | negligible?",
)
POINT = ["where", "K", "M"]
CLOSED_FORMS = ["theory plain", "theory early"]
_SIZES = {"simulated": 8, "emulated": 5, "measured": 4.5}  # of markers; the larger lie beneath


def tables(results: Results) -> list[Table]:
    frame = steps(results)
    return [at_4k(results, frame), idle(results, frame)]


def steps(results: Results) -> Frame:
    """A line for each run: its idle share, the closed forms, and its slow stage (-1: none)."""
    frame = runs_frame(results, NAME)
    points = list(zip(frame["K"], frame["M"], strict=True))
    # Of stages of known duration; None where real layers compute.
    forward = [args.get("forward_s") for args in frame["model_args"]]
    frame["slow"] = [F.index(max(F)) if isinstance(F, list) else -1 for F in forward]
    frame["idle/total"] = or_status(frame, "idle_over_total")
    frame["theory plain"] = [theory.bubble_over_total(K, M) for K, M in points]
    frame["theory early"] = [theory.bubble(K, M, "early") for K, M in points]
    frame["above early"] = 100 * (frame["idle_over_total"] - frame["theory early"])
    frame["step over early"] = frame["step_s"] / [
        theory.step_time(K, M, "early", F, F, 2 * F) if isinstance(F, float) else nan
        for F, (K, M) in zip(forward, points, strict=True)
    ]
    return frame


def columns(frame: Frame, *values: str, **wanted: Any) -> Frame:
    return select(frame, slow=-1, **wanted).groupby(POINT)[[*values]].first()


def idle(results: Results, frame: Frame) -> Table:
    equal = select(frame, schedule="gpipe")
    table = columns(equal, *CLOSED_FORMS)
    emulated = columns(equal, "idle/total", "above early", "step over early", fidelity="emulated")
    table["simulated idle/total"] = columns(equal, "idle/total", fidelity="simulated")
    table = table.join(emulated.add_prefix("emulated "))
    table["measured idle/total"] = columns(equal, "idle/total", fidelity="measured")
    forms = dict.fromkeys(CLOSED_FORMS, ".1%") | {"emulated above early": "+.1f"}
    return framed(results, NAME, table.reset_index(), ABOUT, forms=forms)


def at_4k(results: Results, frame: Frame) -> Table:
    """The paper's sentence, one line a K: is the bubble negligible at M = 4K?"""
    frame = frame[frame["M"] == 4 * frame["K"]]
    equal = select(frame, schedule="gpipe")
    table = columns(equal, *CLOSED_FORMS)
    table["simulated early"] = columns(equal, "idle/total", fidelity="simulated")
    table["simulated late"] = columns(frame, "idle/total", schedule="gpipe-late")
    table["emulated early"] = columns(equal, "idle/total", fidelity="emulated")
    table["measured early"] = columns(equal, "idle/total", fidelity="measured")
    forms = dict.fromkeys(table.columns, ".1%")
    table[LEAST] = [least_negligible_m(K) for _, K, _ in table.index]
    if beside_paper(results, NAME):
        ours = chosen(evidence_at_4k(frame))
        ids = [cell_id(NAME, f"K={K}", "negligible") for _, K, _ in table.index]
        table["negligible?"] = [verdict_on(at, ours[at]) if at in ours else "" for at in ids]
    limit = f"{NEGLIGIBLE:.0%}"
    return framed(results, f"{NAME}_at_4k", table.reset_index(), ABOUT, forms=forms, limit=limit)


def least_negligible_m(K: int) -> int:
    """The least M at which the early form 3(K-1)/(4M+3(K-1)) is at most `NEGLIGIBLE`."""
    return ceil(3 * (K - 1) * (1 - NEGLIGIBLE) / (4 * NEGLIGIBLE) - 1e-9)


def evidence(results: Results) -> Iterator[tuple[str, Evidence]]:
    frame = steps(results)
    yield from evidence_at_4k(frame[frame["M"] == 4 * frame["K"]])
    yield from _order(results)


def evidence_at_4k(frame: Frame) -> Iterator[tuple[str, Evidence]]:
    """The idle share of a step, and how far it is above the textbook's, in percent of K x step."""
    for line in select(frame, slow=-1, schedule="gpipe", done=True, K=KS).to_dict("records"):
        K, plain = line["K"], 100 * line["theory plain"]
        sets = [round_.values["bubble_idle_over_total"] for round_ in line["run"].rounds]
        _, low, high = (100 * value for value in interval_of_sets(sets))
        share = 100 * line["idle_over_total"]
        ours = Evidence(share, line["fidelity"], (line["id"],), low, high)
        yield cell_id(NAME, f"K={K}", "negligible"), ours
        if K == 4:
            yield "bubble/3 of 19", ours
        ours = replace(ours, value=share - plain, low=low - plain, high=high - plain)
        yield cell_id(NAME, f"K={K}", "below theory"), ours


def _order(results: Results) -> Iterator[tuple[str, Evidence]]:
    ran = ["measured", "emulated"]
    found = {"K": 4, "M": 4, "schedule": "gpipe", "done": True, "fidelity": ran}
    for run in runs_frame(results, NAME, "table2", **found)["run"]:
        timeline = results.timeline(run)
        if timeline is not None:
            value = float(out_of_order(timeline, run.M))
            yield "figure2/order", Evidence(value, run.fidelity, (run.id,))


def out_of_order(timeline: Timeline, M: int) -> int:
    """Stages whose forwards do not ascend, or whose backwards do not descend after them."""
    ascending = list(range(M))
    drawn = [*(("F", i) for i in ascending), *(("B", i) for i in reversed(ascending))]
    count = 0
    for stage in range(timeline.stages):
        spans = [span for span in timeline.spans if span.stage == stage and span.kind in "FB"]
        ran = [(span.kind, span.micro_batch) for span in sorted(spans, key=lambda span: span.start)]
        count += ran != drawn
    return count


def figures(results: Results) -> Iterator[Picture]:
    """Of the place with the most runs."""
    frame = select(steps(results), done=True)
    frame = select(frame, where=frame["where"].mode()[0])
    equal = select(frame, slow=-1, schedule="gpipe")
    yield "curves", curves(equal), {}


def curves(equal: Frame) -> Figure | None:
    Ks = sorted(set(equal["K"]))
    if not Ks:
        return None
    figure, panels = in_pairs(len(Ks), 2.7)
    for axes, K in zip(panels, Ks, strict=True):
        _panel(axes, K, select(equal, K=K))
    theories = ("plain: (K-1)/(M+K-1)", "--"), ("ideal: recomputes early", ":")
    legend(figure, set(equal["fidelity"]), *theories, coloured=True)
    return figure


def _panel(axes: Axes, K: int, runs: Frame) -> None:
    Ms = sorted(set(runs["M"]))
    dense = [M for M in range(Ms[0], Ms[-1] + 1) if M <= 16 or M % 4 == 0]
    plain = [100 * theory.bubble_over_total(K, M) for M in dense]
    early = [100 * theory.bubble(K, M, "early") for M in dense]
    axes.plot(dense, plain, "--", color=THEORY, linewidth=1.1)
    axes.plot(dense, early, ":", color=THEORY, linewidth=1.4)
    for fidelity, size in _SIZES.items():
        points = select(runs, fidelity=fidelity)
        look = dots(fidelity, markersize=size)
        axes.plot(points["M"], 100 * points["idle_over_total"], **look)
    axes.axvline(4 * K, color=SOFT, linewidth=0.9)
    axes.text(4 * K * 1.06, 97, f"M=4K={4 * K}", fontsize=8.5, color=KINDS["U"], va="top")
    over_m(axes, Ms)
    axes.set(title=f"K={K}", ylabel="idle/total (%)", ylim=(0, 100))
