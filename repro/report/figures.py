"""Which figures the results allow, drawn to png and svg: curves, bars and measured timelines."""

import json
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from repro.gpipe.schedule.timeline import Timeline
from repro.harness.results import Results, Run
from repro.harness.spec import run_name, slug
from repro.report import bars, curves, gantt, texts
from repro.report.compare import (
    Setting,
    fidelities,
    matching,
    optimizers,
    rows_of,
    settings,
    suffix,
    without_smoke,
)
from repro.report.declared import report_of
from repro.report.ratio import NO_INTERVAL, ideal
from repro.report.style import model_name, save, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Make = Callable[[Results, list[Run]], "Figure | None"]
Picture = tuple[str, "Figure | None", str]  # name, figure, caption
Hidden = Mapping[str, tuple[str, ...]]
_PICTURES: dict[str, tuple[Make, str]] = {
    "cells": (
        curves.cells,
        f"Table 2 as points: throughput over K=2, M=1, and the ideal; {NO_INTERVAL}. {texts.IDEAL}",
    ),
    "speedup": (
        curves.speedup,
        "Speedup over K=1 at the same M, N and re-materialization, against K and against M; "
        f"{NO_INTERVAL}. {texts.IDEAL} {texts.PLAIN}",
    ),
    "bubble": (
        curves.bubble,
        "Idle/total over the paper's (K-1)/(M+K-1) and that of the ideal; emulated and simulated "
        f"points stand a little apart sideways. {texts.IDLE} {texts.IDEAL}",
    ),
    "memory": (bars.memory, "Peak memory of each stage"),  # `_caption` says how it is known
    "breakdown": (
        bars.breakdown,
        f"Where the step goes. {texts.BUBBLE}",
    ),
}
_PIE = " The bar on top is the paper's pie (NeurIPS Table 4; section 3.1)."
_SHORTENED = (
    " Imbalance is negative where an unequal cut shortens the wait; here it is taken off the "
    "bubble."
)
_TRACED = "One traced step, the one of median length, on the clock that the stages share."
_SIMULATED = "One simulated step, on a virtual clock."


@dataclass(frozen=True)
class Drawn:
    """A figure on disk: `stem`.png and `stem`.svg, the experiment it belongs to, what it shows.

    The page shows a `folded` one only when it is asked for.
    """

    stem: Path
    experiment: str
    caption: str
    folded: bool = False


def draw_all(results: Results, directory: Path) -> list[Drawn]:
    """Draw every figure that these results allow into `directory`; none without finished runs."""
    results = without_smoke(results)
    done = rows_of(results, status="done")
    drawn: list[Drawn] = []
    with styled():
        for experiment in dict.fromkeys(row.experiment for row in done):
            rows = matching(done, experiment=experiment)
            report = report_of(experiment)
            folded = getattr(report, "FOLDED", ())
            for name, figure, caption in getattr(report, "figures", figures)(results, rows):
                if figure is not None:
                    stem = directory / f"{experiment}_{name}"
                    save(figure, stem)
                    drawn.append(
                        Drawn(
                            stem,
                            experiment,
                            caption,
                            any(fnmatch(stem.name, one) for one in folded),
                        )
                    )
    return drawn


def figures(
    results: Results, rows: list[Run], hidden: Hidden = MappingProxyType({})
) -> Iterator[Picture]:
    """The generic figures of an experiment: name, figure and caption of each; none where other libraries took part.

    `hidden` names the fidelities that a figure leaves out.
    """
    if any(row.library != "repro" for row in rows):
        return  # of which ours alone is traced
    for name, (make, _) in _PICTURES.items():
        shown = [row for row in rows if row.fidelity not in hidden.get(name, ())]
        yield name, make(results, shown), _caption(results, shown, name)
    yield from timelines(
        results, [row for row in rows if row.fidelity not in hidden.get("timelines", ())]
    )


def timelines(results: Results, rows: list[Run]) -> Iterator[tuple[str, "Figure", str]]:
    """Figure 2(b) (M=1) and 2(c) (M=4, else near it) of every setting and fidelity, at the largest K traced."""
    found = settings(results, rows)
    for setting in found:
        for fidelity in fidelities(setting.rows):
            runs = [row for row in matching(setting.rows, fidelity=fidelity) if row.K > 1]
            runs = sorted(runs, key=lambda row: (-row.K, abs(row.M - 4)))
            stem = _stem(setting, fidelity, found)
            for letter in "bc":
                some = (row for row in runs if (row.M == 1) == (letter == "b"))
                pair = next(
                    ((row, t) for row in some if (t := results.timeline(row)) is not None), None
                )
                if pair is not None:
                    yield (
                        f"figure2{letter}_{stem}",
                        _timeline(*pair, letter, setting, pair[0].spec.stretch),
                        _SIMULATED if fidelity == "simulated" else _TRACED,
                    )


def _stem(setting: Setting, fidelity: str, found: list[Setting]) -> str:
    """`transformer_emulated`, and where several settings of a model have this fidelity what tells them apart."""
    alike = [
        one for one in found if one.model == setting.model and matching(one.rows, fidelity=fidelity)
    ]
    others = {part for one in alike if one is not setting for part in one.details.split(", ")}
    own = (
        [part for part in setting.details.split(", ") if part not in others]
        if len(alike) > 1
        else []
    )
    number = [str(alike.index(setting) + 1)] * (len(alike) > 1 and not own)
    return slug(" ".join([setting.model, *own, *number])) + suffix(fidelity)


def _how_known(fidelities: set[str]) -> str:
    """Where peaks of memory of these fidelities come from."""
    if fidelities == {"simulated"}:
        return ", counted."
    return (
        ", read in a step of its own"
        + "; simulated ones are counted" * ("simulated" in fidelities)
        + "."
    )


def _caption(results: Results, rows: list[Run], name: str) -> str:
    """What a picture shows, and what these rows made it hide."""
    hidden = name == "breakdown" and bars.shortened(results, rows)
    updates = optimizers(results, rows)
    pie = name == "breakdown" and bars.has_pie(results, rows)
    if name == "memory":
        return _PICTURES[name][1] + _how_known({row.fidelity for row in rows})
    return _PICTURES[name][1] + _PIE * pie + _SHORTENED * hidden + f" {updates}" * bool(updates)


def traces(results: Results, directory: Path) -> dict[str, Path]:
    """One Chrome trace for ui.perfetto.dev per experiment: every recorded timeline, a process each."""
    found: dict[str, list[dict]] = {}
    for row in rows_of(results, status="done"):
        if (timeline := results.timeline(row)) is not None:
            events = found.setdefault(row.experiment, [])
            name = run_name(row.id, row.fidelity, row.differs_in)
            events += timeline.to_chrome(name, pid=len(events))["traceEvents"]
    paths = {experiment: directory / f"{experiment}.trace.json" for experiment in found}
    for experiment, path in paths.items():
        path.write_text(
            json.dumps({"traceEvents": found[experiment], "displayTimeUnit": "ms"}),
            encoding="utf-8",
        )
    return paths


def _timeline(
    row: Run, timeline: Timeline, letter: str, setting: Setting, stretch: float | None
) -> "Figure":
    """One measured step over the ideal of the same schedule, titled with what it is of."""
    K, M = row.K, row.M
    words = f"As Figure 2({letter}), {row.fidelity}: {model_name(setting.model)}, K={K}, M={M}"
    waited = (
        f", times are the device's, stages waited {stretch:g} times as long"
        if stretch and stretch != 1
        else ""
    )
    details = textwrap.fill(setting.details + waited, 84)
    return gantt.draw(timeline, f"{words}\n{details}", row.fidelity, ideal(K, M, *setting.plan))
