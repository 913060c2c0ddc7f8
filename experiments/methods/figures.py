"""Each method at a glance, the schedules on one clock, and the loss of stale weights."""

from collections.abc import Iterator, Mapping
from math import isnan
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.methods.recorded import Compared, compared, label_of, losses, method_of, staleness
from experiments.methods.runs import CURVES, NAME, PIPELINES, SCHEDULES, SIMULATED_M, WORK, K
from repro.gpipe.schedule.timeline import Timeline
from repro.harness.results import Results, Run
from repro.report import gantt
from repro.report.compare import rows_of
from repro.report.ratio import NO_INTERVAL
from repro.report.style import FIDELITIES, MARKERS, THEORY, grid, series_colour

_CUT = 1.1  # the clock is drawn for so many steps of GPipe


def figures(results: Results, _rows: list[Run]) -> Iterator[tuple[str, Figure | None, str]]:
    yield (
        "glance",
        at_a_glance(results),
        "Each method on the same Transformer and mini-batch: throughput over one device "
        f"({NO_INTERVAL}), and the peak memory of the fullest device. In brackets: the number of "
        "devices; dotted: one device.",
    )
    yield (
        "schedules",
        on_one_clock(results),
        f"One simulated step of K={K} equal ranks with M={SIMULATED_M} micro-batches, F:B = 1:2, "
        "without recomputation, under each other on one clock. Where a rank holds two stages, the "
        "second is paler.",
    )
    yield (
        "loss",
        loss_curves(results),
        "Training loss of one repeated mini-batch against the examples that were used. PipeDream "
        "updates after each micro-batch; its staleness is how many updates older than the newest "
        "the weights of a micro-batch are.",
    )


def at_a_glance(results: Results) -> Figure | None:
    """Two dots a method: throughput over one device, and memory; of one place."""
    lines = [
        line
        for line in compared(results, WORK[0])
        if line.run.done and not isnan(line.ratio(results).value)
    ]
    if not lines:
        return None
    lines = [line for line in lines if line.run.place == lines[0].run.place]
    drawn, ((left, right),) = grid(1, 2, 0.6 + 0.24 * len(lines))
    places = range(len(lines))
    dot: dict[str, Any] = {
        "marker": MARKERS["measured"],
        "color": FIDELITIES["measured"],
        "linestyle": "",
        "label": "measured",
    }
    _throughputs(left, results, lines, dot)
    peaks = [1024 * line.run.peak_gib_max for line in lines]
    right.plot(peaks, places, **dot)
    right.axvline(_of_one_device(lines), linestyle=":", color=THEORY, linewidth=1)
    right.set(xlabel="peak memory (MiB), measured", xlim=(0, None))
    names = [f"{label_of(line.run)} ({line.run.spec.devices})" for line in lines]
    for axes in (left, right):
        axes.set_yticks(places, names)
        axes.set_ylim(len(lines) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
    right.tick_params(axis="y", labelleft=False)
    return drawn


def _throughputs(
    axes: Axes, results: Results, lines: list[Compared], dot: Mapping[str, Any]
) -> None:
    """Dots with the ends of their intervals; without them where there are few rounds."""
    ratios = [line.ratio(results) for line in lines]
    down = [0.0 if isnan(ratio.low) else ratio.value - ratio.low for ratio in ratios]
    up = [0.0 if isnan(ratio.high) else ratio.high - ratio.value for ratio in ratios]
    values = [ratio.value for ratio in ratios]
    axes.errorbar(values, range(len(lines)), xerr=[down, up], elinewidth=1.1, **dot)
    axes.axvline(1, linestyle=":", color=THEORY, linewidth=1)
    axes.set(xlabel="throughput over one device, measured", xlim=(0, None))


def _of_one_device(lines: list[Compared]) -> float:
    base = lines[0].base
    return 1024 * base.peak_gib_max if base else 0.0


def on_one_clock(results: Results) -> Figure | None:
    """The timeline of each schedule, cut off a little after the end of GPipe's."""
    timelines: dict[str, Timeline] = {}
    for run in rows_of(results, experiment=NAME, group=SCHEDULES, M=SIMULATED_M, remat="never"):
        timeline = results.timeline(run)
        if timeline is not None:
            timelines.setdefault(method_of(run), timeline)
    names = [name for name in PIPELINES if name in timelines]
    if "gpipe" not in names:
        return None
    end = _CUT * timelines["gpipe"].step_time
    drawn, panels = grid(len(names), 1, 1.1)
    for (axes,), name in zip(panels, names, strict=True):
        timeline = timelines[name]
        gantt.boxes(axes, timeline, 1e3, end, labelled=False)
        axes.set_yticks([0, timeline.ranks - 1], ["0", str(timeline.ranks - 1)])
        axes.set_ylabel("rank")
        title = f"{name}: {timeline.bubble_over_total:.1%} idle"
        if timeline.step_time > end:
            title += f"; it goes on to {1e3 * timeline.step_time:.0f} ms"
        axes.set_title(title)
    for (axes,) in panels[:-1]:
        axes.tick_params(axis="x", labelbottom=False)
    panels[-1][0].set_xlabel("time (ms), simulated")
    gantt.legend(drawn, list(timelines.values()))
    return drawn


def loss_curves(results: Results) -> Figure | None:
    runs = [run for run in rows_of(results, experiment=NAME, group=CURVES) if run.done]
    runs = [run for run in runs if run.place == runs[0].place]
    if not any(method_of(run) == "gpipe" for run in runs) or len(runs) < 2:
        return None
    drawn, ((axes,),) = grid(1, 1, 3.2)
    for run in runs:
        examples = [run.N * step for step in range(len(losses(run)))]
        if method_of(run) == "gpipe":
            label, colour = f"gpipe, K={run.K}: one update in {run.N} examples", THEORY
        else:
            label = f"pipedream, K={run.K}: one in {run.N // run.M}"
            label += f", staleness {max(staleness(run), default=0)}"
            colour = series_colour(run.K)
        look = {"marker": MARKERS["measured"], "markersize": 3}
        axes.plot(examples, losses(run), color=colour, label=label, **look)
    axes.set(xlabel="examples", ylabel="training loss, measured", ylim=(0, None))
    axes.legend(loc="upper right")
    return drawn
