"""Which figures the results allow, drawn to png and svg: curves, bars and recorded timelines."""

import json
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from matplotlib.figure import Figure

from repro.gpipe.schedule.timeline import Timeline
from repro.harness.results import Results, Run
from repro.harness.spec import slug
from repro.report import bars, curves, gantt
from repro.report.compare import (
    Setting,
    fidelities,
    matching,
    rows_of,
    settings,
    suffix,
    without_tiny,
)
from repro.report.declared import report_of
from repro.report.ratio import NO_INTERVAL, ideal
from repro.report.style import model_name, save, styled

Make = Callable[[Results, list[Run]], Figure | None]
Picture = tuple[str, Figure | None, str]  # name, figure, caption
_NO_FIDELITIES: Mapping[str, tuple[str, ...]] = MappingProxyType({})
_IDEAL = "the ideal with equal stages, F:R:B = 1:1:2 and free messages"
PICTURES: dict[str, tuple[Make, str]] = {
    "cells": (
        curves.cells,
        f"Table 2 as points: throughput over K=2, M=1 ({NO_INTERVAL}). Lines: {_IDEAL}.",
    ),
    "speedup": (
        curves.speedup,
        "Speedup over K=1 at the same M, N and re-materialization, against K and against M "
        f"({NO_INTERVAL}). Dotted: {_IDEAL}; dashed: the paper's K M/(M+K-1).",
    ),
    "bubble": (
        curves.bubble,
        "Idle/total against M; emulated and simulated points are shifted sideways. "
        f"Dashed: the paper's (K-1)/(M+K-1); dotted: {_IDEAL}.",
    ),
    "memory": (
        bars.memory,
        "Peak memory of each stage, read in a step of its own; that of simulated runs is counted.",
    ),
    "breakdown": (
        bars.breakdown,
        "Where the time of a step goes. Where an unequal cut shortens the wait, the imbalance is "
        "negative and is taken off the bubble.",
    ),
}
"""Of the generic figures: how each is drawn, and its caption."""
TRACED = "One traced step, the one of median length, on the clock that the stages share."
SIMULATED = "One simulated step, on a virtual clock."


@dataclass(frozen=True)
class Drawn:
    """A figure on disk.

    Attributes:
        stem: path without ending, of a png and an svg file.
        experiment: that it belongs to.
        caption: what it shows.
    """

    stem: Path
    experiment: str
    caption: str


def draw_all(results: Results, directory: Path) -> list[Drawn]:
    """Draw every figure that these results allow into a directory; none without finished runs."""
    results = without_tiny(results)
    done = rows_of(results, status="done")
    drawn: list[Drawn] = []
    with styled():
        for experiment in dict.fromkeys(run.experiment for run in done):
            runs = matching(done, experiment=experiment)
            make = getattr(report_of(experiment), "figures", figures)
            for name, figure, caption in make(results, runs):
                if figure is not None:
                    stem = directory / f"{experiment}_{name}"
                    save(figure, stem)
                    drawn.append(Drawn(stem, experiment, caption))
    return drawn


def figures(
    results: Results, rows: list[Run], hidden: Mapping[str, tuple[str, ...]] = _NO_FIDELITIES
) -> Iterator[Picture]:
    """The generic figures of an experiment: name, figure and caption of each.

    Args:
        results: that the runs are of.
        rows: the runs that are drawn.
        hidden: name of a figure -> the fidelities that it leaves out.
    """
    # Where other libraries took part, only our own steps are traced.
    if any(run.library != "repro" for run in rows):
        return

    def shown(name: str) -> list[Run]:
        return [run for run in rows if run.fidelity not in hidden.get(name, ())]

    for name, (make, caption) in PICTURES.items():
        yield name, make(results, shown(name)), caption
    yield from timelines(results, shown("timelines"))


def timelines(results: Results, rows: list[Run]) -> Iterator[tuple[str, Figure, str]]:
    """Figure 2(b) and 2(c) of every setting and fidelity, at the largest K that was traced.

    2(b) has M=1, and 2(c) M=4 or the M that is nearest to it.
    """
    every = settings(results, rows)
    for setting in every:
        for fidelity in fidelities(setting.rows):
            runs = [run for run in matching(setting.rows, fidelity=fidelity) if run.K > 1]
            runs.sort(key=lambda run: (-run.K, abs(run.M - 4)))
            panels = {
                "b": [run for run in runs if run.M == 1],
                "c": [run for run in runs if run.M > 1],
            }
            stem = _stem(setting, fidelity, every)
            caption = SIMULATED if fidelity == "simulated" else TRACED
            for letter, candidates in panels.items():
                traced = ((run, results.timeline(run)) for run in candidates)
                for run, timeline in traced:
                    if timeline is not None:
                        figure = _timeline(run, timeline, letter, setting)
                        yield f"figure2{letter}_{stem}", figure, caption
                        break


def _stem(setting: Setting, fidelity: str, every: list[Setting]) -> str:
    """`transformer_emulated`, with what is special to a setting where a model has several."""
    alike = [
        other
        for other in every
        if other.model == setting.model and matching(other.rows, fidelity=fidelity)
    ]
    parts = [setting.model]
    if len(alike) > 1:
        others = [other for other in alike if other is not setting]
        usual = {part for other in others for part in other.details.split(", ")}
        special = [part for part in setting.details.split(", ") if part not in usual]
        parts += special or [str(alike.index(setting) + 1)]
    return slug(" ".join(parts)) + suffix(fidelity)


def traces(results: Results, directory: Path) -> dict[str, Path]:
    """One Chrome trace (ui.perfetto.dev) per experiment: a process for every recorded timeline."""
    runs = rows_of(results, status="done")
    paths = {}
    for experiment in dict.fromkeys(run.experiment for run in runs):
        trace = results.chrome_trace(matching(runs, experiment=experiment))
        if trace["traceEvents"]:
            paths[experiment] = directory / f"{experiment}.trace.json"
            paths[experiment].write_text(json.dumps(trace), encoding="utf-8")
    return paths


def _timeline(run: Run, timeline: Timeline, letter: str, setting: Setting) -> Figure:
    """One recorded step over the ideal of the same schedule."""
    name = model_name(setting.model)
    headline = f"As Figure 2({letter}), {run.fidelity}: {name}, K={run.K}, M={run.M}"
    details = setting.details
    stretch = run.spec.stretch or 1
    if stretch != 1:
        details += f", times are the device's, stages waited {stretch:g} times as long"
    title = f"{headline}\n{textwrap.fill(details, 84)}"
    return gantt.draw(timeline, title, run.fidelity, ideal(run.K, run.M, *setting.plan))
