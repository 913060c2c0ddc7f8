"""What the runtime costs: steps of known duration against arithmetic.

Its layers wait for a known time, one layer a stage, so the best possible step is known as well:
(M+K-1)F + M(R+B) + (K-1)B with early recompute (arXiv:1811.06965v5, section 2.3). More is overhead.
"""

from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.runtime.runs import ABOUT, BARE, GOALS, KNOWN_DURATIONS, MESSAGE_SIZE, MIB, NAME
from repro.harness.frame import Frame, ratios, runs_frame, select
from repro.harness.results import Results
from repro.harness.statistics import interval_of_sets
from repro.paper import theory
from repro.report import style
from repro.report.declared import Shown
from repro.report.figures import Picture
from repro.report.framed import error_bars, framed, met_or_missed, with_interval, with_parts
from repro.report.table import EMPTY, Table

_EXPECTED = ("computation", "recompute", "bubble")  # the parts that arithmetic has
OVERHEAD, OVER_BARE = (f"{name} emulated" for name in GOALS)
SHOWN = Shown(
    f"{NAME}_known_durations",
    f"K | M | F (ms) | step (ms) emulated | step (ms) arithmetic | {OVERHEAD} | overhead (%) goal",
)
_STYLES = {"gloo": "--", "shm": "-", "auto": ":"}


def answer(tables: Mapping[str, Table]) -> str:
    table = tables[SHOWN.table]
    overheads = table.numbers(OVERHEAD)
    goals = [text for text in table.shown["overhead (%) goal"] if text not in ("", EMPTY)]
    met = sum("met" in text for text in goals)
    return (
        f"A step of stages of known duration takes between {overheads[0]} % and {overheads[-1]} % "
        f"longer than arithmetic says; of {len(goals)} goals {met or 'none'} is met."
    )


def timed(results: Results, group: str) -> Frame:
    frame = runs_frame(results, NAME, group=group, library="repro")
    frame["F"] = [args["forward_s"] for args in frame["model_args"]]
    lines = frame[["K", "M", "F"]].itertuples(index=False)
    frame["best_s"] = [theory.step_time(K, M, "early", F, F, 2 * F) for K, M, F in lines]
    recompute = frame["M"] * frame["F"] / frame["best_s"]
    for part, share in zip(_EXPECTED, (3 * recompute, recompute, 1 - 4 * recompute), strict=True):
        frame[f"{part} arithmetic"] = share
    frame = with_parts(frame)
    overheads = [
        interval_of_sets(
            [[100 * (seconds / best - 1) for seconds in round_.blocks] for round_ in run.rounds]
        )
        for run, best in zip(frame["run"], frame["best_s"], strict=True)
    ]
    return with_interval(frame, OVERHEAD, overheads)


def tables(results: Results) -> list[Table]:
    frame = timed(results, KNOWN_DURATIONS)
    # Of steps, so the inverse of the ratio of throughputs.
    over = 1 / ratios(results, frame, **BARE)[["ratio", "high", "low"]].to_numpy()
    frame = with_interval(frame, OVER_BARE, over.tolist())
    table = frame[["where", "K", "M"]].assign(**{"F (ms)": (1e3 * frame["F"]).map("{:g}".format)})
    table = table.join(frame[["status", "rounds"]])
    table["step (ms) emulated"] = 1e3 * frame["step_s"]
    table["step (ms) arithmetic"] = 1e3 * frame["best_s"]
    points = [*zip(frame["F"], frame["K"], frame["M"], strict=True)]
    for name, goals in GOALS.items():
        table = table.join(frame.filter(like=name))
        table[f"{name} goal"] = [
            met_or_missed(value, at_most=goals[point]) if point in goals else None
            for value, point in zip(frame[f"{name} emulated"], points, strict=True)
        ]
    table["idle/total emulated"] = frame["idle_over_total"]
    table["idle/total arithmetic"] = frame["bubble arithmetic"]
    forms = {OVERHEAD: ".2f", OVER_BARE: ".3f"}
    for part in (*_EXPECTED, *(part for part in style.PARTS if part not in _EXPECTED)):
        table[f"{part} emulated"] = frame[part]
        table = table.join(frame.filter(like=f"{part} arithmetic"))
        forms |= {f"{part} emulated": ".1%", f"{part} arithmetic": ".1%"}
    return [framed(results, SHOWN.table, table, ABOUT, forms=forms, keep_where=True)]


def figures(results: Results) -> Iterator[Picture]:
    yield "overhead", figure(results), {}


def figure(results: Results) -> Figure | None:
    frame = select(timed(results, MESSAGE_SIZE), done=True)
    if not len(frame):
        return None
    elements = np.array([args["elements"] for args in frame["model_args"]])
    # A message is a micro-batch of float32 numbers.
    frame = frame.assign(bytes=4 * elements * frame["N"] // frame["M"])
    drawn, ((left, right),) = style.grid(1, 2, 3.6)
    lines = frame.sort_values("bytes").groupby(["transport", "where"])
    for (transport, where), runs in lines:
        left.errorbar(
            runs["bytes"],
            runs[OVERHEAD],
            error_bars(runs, OVERHEAD),
            **style.dots("emulated", linestyle=_STYLES[transport]),
            markerfacecolor="white" if transport == "gloo" else None,
            label=f"{transport}, {where}",
        )
    sizes = sorted(set(frame["bytes"]))
    left.set_xscale("log", base=2)
    style.ticks(left, sizes, [_size(size) for size in sizes])
    left.set_ylim(bottom=min(0, left.get_ylim()[0]))
    left.set(
        xlabel="message", ylabel="overhead (%), emulated", title="step over the optimum, minus 1"
    )
    left.legend(loc="upper left")
    _parts(right, frame.sort_values(["where", "bytes", "transport"]))
    style.legend_below(drawn, right)
    return drawn


def _parts(axes: Axes, frame: Frame) -> None:
    """A bar of the parts of each run's overhead; what is below 0 stands to the left."""
    places = range(len(frame))
    right, left = np.zeros(len(frame)), np.zeros(len(frame))
    for part in style.PARTS:
        # Of each run, its excess over arithmetic in percent of the optimum step.
        values = np.array([_excess(line, part) for line in frame.to_dict("records")])
        starts = np.where(values >= 0, right, left)
        axes.barh(places, values, left=starts, **style.part_look(part))
        right, left = right + values.clip(min=0), left + values.clip(max=0)
    names = zip(frame["bytes"], frame["transport"], strict=True)
    style.rows_of_names(axes, [f"{_size(count)}, {transport}" for count, transport in names])
    axes.axvline(0, color=style.THEORY, linewidth=0.8)
    axes.grid(axis="y", visible=False)
    axes.set(xlabel="overhead (%), emulated, mean over rounds", title="where it goes")


def _excess(run: Mapping[str, Any], part: str) -> float:
    ideal = run.get(f"{part} arithmetic", 0.0)
    of_rounds = [
        round_.breakdown[part] * round_.step_s / run["best_s"] for round_ in run["run"].rounds
    ]
    return 100 * (fmean(of_rounds) - ideal)


def _size(count: int) -> str:
    return f"{count / MIB:g} MiB" if count >= MIB else f"{count / 2**10:g} KiB"
