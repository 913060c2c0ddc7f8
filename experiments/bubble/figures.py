"""The bubble as curves against M, and a step with one slow stage as a timeline."""

from collections.abc import Iterator

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.bubble.points import Point, point_of, points, position, runs_by_point
from repro.harness.results import Results, Run
from repro.paper import theory
from repro.report import gantt
from repro.report.compare import fidelities, matching, where
from repro.report.style import FIDELITIES, KINDS, MARKERS, SOFT, THEORY, in_pairs, legend, ticks

_SIZES = {"simulated": 8, "emulated": 5, "measured": 4.5}  # the larger ones lie beneath


def figures(results: Results, rows: list[Run]) -> Iterator[tuple[str, Figure | None, str]]:
    places = [where(results, run) for run in rows]
    if not places:
        return
    place = max(dict.fromkeys(places), key=places.count)
    equal = [
        run
        for run in rows
        if point_of(results, run) == Point(place, run.K, run.M) and run.schedule == "gpipe"
    ]
    yield (
        "curves",
        curves(equal),
        "Idle/total against M: closed forms, and what clocks show. The vertical line is M=4K, "
        "where the paper calls the bubble almost negligible.",
    )
    # The stage in the middle, if there is one that is neither the first nor the last.
    slow = [point for point in points(results, slow=True) if point.where == place]
    slow.sort(key=lambda point: point.slow_stage in (0, point.K - 1))
    if slow:
        caption = (
            f"One stage of {slow[0].K} takes {slow[0].slowdown:g} times as long: the others wait "
            "for it in every micro-batch. The two steps have one clock."
        )
        yield "slow", slow_step(results, slow[0]), caption


def curves(rows: list[Run]) -> Figure | None:
    """Idle/total of equal stages against M, one panel a K."""
    Ks = sorted({run.K for run in rows})
    if not Ks:
        return None
    figure, panels = in_pairs(len(Ks), 2.7)
    for axes, K in zip(panels, Ks, strict=True):
        _panel(axes, K, matching(rows, K=K))
    legend(
        figure,
        fidelities(rows),
        ("plain: (K-1)/(M+K-1)", "--"),
        ("ideal: recomputes early", ":"),
        coloured=True,
    )
    return figure


def _panel(axes: Axes, K: int, rows: list[Run]) -> None:
    Ms = sorted({run.M for run in rows})
    dense = [M for M in range(Ms[0], Ms[-1] + 1) if M <= 16 or M % 4 == 0]
    plain = [100 * theory.bubble_over_total(K, M) for M in dense]
    early = [100 * theory.bubble(K, M, "early") for M in dense]
    axes.plot(dense, plain, "--", color=THEORY, linewidth=1.1, label="plain")
    axes.plot(dense, early, ":", color=THEORY, linewidth=1.4, label="ideal")
    for fidelity, size in _SIZES.items():
        runs = matching(rows, fidelity=fidelity)
        axes.plot(
            [run.M for run in runs],
            [100 * run.bubble_idle_over_total for run in runs],
            MARKERS[fidelity],
            color=FIDELITIES[fidelity],
            markersize=size,
            linestyle="",
            label=fidelity,
        )
    axes.axvline(4 * K, color=SOFT, linewidth=0.9)
    axes.text(4 * K * 1.06, 97, f"M=4K={4 * K}", fontsize=8.5, color=KINDS["U"], va="top")
    axes.set_xscale("log", base=2)
    ticks(axes, Ms)
    axes.set_ylim(0, 100)
    axes.set(title=f"K={K}", xlabel="M micro-batches", ylabel="idle/total (%)")


def slow_step(results: Results, point: Point) -> Figure | None:
    """The emulated step above the simulated one; None where no timeline was recorded."""
    runs = runs_by_point(results)
    steps = []
    for fidelity in ("emulated", "simulated"):
        run = runs.run(fidelity, *point)
        timeline = results.timeline(run) if run else None
        if timeline is not None:
            steps.append((fidelity, timeline))
    if not steps:
        return None
    headline = f"One slow stage, {position(point)}: K={point.K}, M={point.M}"
    return gantt.draw(headline, steps, "")
