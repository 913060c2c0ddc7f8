"""What the runtime costs: steps of known duration against arithmetic.

Its layers wait for a known time, one layer a stage, so the best possible step is known as well:
(M+K-1)F + M(R+B) + (K-1)B with early recompute (arXiv:1811.06965v5, section 2.3). More is overhead.
"""

from collections.abc import Iterator

from matplotlib.figure import Figure

from experiments.runtime.runs import ABOUT, BARE, KNOWN_DURATIONS, MESSAGE_SIZE, MIB, NAME
from repro.harness.frame import Frame, ratios, runs_frame
from repro.harness.results import Results
from repro.harness.statistics import interval_of_sets
from repro.paper import theory
from repro.report import style
from repro.report.figures import Picture
from repro.report.framed import error_bars, framed, with_interval
from repro.report.table import Table

STEP, OVERHEAD, OVER_BARE = "step (ms) emulated", "overhead (%)", "over the bare loop"
_STYLES = {"gloo": "--", "shm": "-"}


def timed(results: Results, group: str) -> Frame:
    """The runs of a group with F, the best possible step and the overhead over it in percent."""
    frame = runs_frame(results, NAME, group=group, library="repro", done=True)
    frame["F"] = [args["forward_s"] for args in frame["model_args"]]
    lines = frame[["K", "M", "F"]].itertuples(index=False)
    frame["best_s"] = [theory.step_time(K, M, "early", F, F, 2 * F) for K, M, F in lines]
    overheads = [
        [[100 * (seconds / best - 1) for seconds in round_.blocks] for round_ in run.rounds]
        for run, best in zip(frame["run"], frame["best_s"], strict=True)
    ]
    return with_interval(frame, OVERHEAD, map(interval_of_sets, overheads))


def tables(results: Results) -> list[Table]:
    frame = timed(results, KNOWN_DURATIONS)
    # Of steps, so the inverse of the ratio of throughputs.
    over = 1 / ratios(results, frame, **BARE)[["ratio", "high", "low"]].to_numpy()
    frame = with_interval(frame, OVER_BARE, over.tolist())
    table = frame[["where", "K", "M"]].assign(**{"F (ms)": (1e3 * frame["F"]).map("{:g}".format)})
    table[STEP], table["step (ms) arithmetic"] = 1e3 * frame["step_s"], 1e3 * frame["best_s"]
    table = table.join(frame.filter(like=OVERHEAD)).join(frame.filter(like=OVER_BARE))
    return [framed(NAME, table, ABOUT)]


def figures(results: Results) -> Iterator[Picture]:
    yield "overhead", over_message_size(results), {}


def over_message_size(results: Results) -> Figure | None:
    """Overhead against the size of messages, a line for each transport."""
    frame = timed(results, MESSAGE_SIZE)
    if not len(frame):
        return None
    # A message is a micro-batch of float32 numbers.
    elements = [args["elements"] for args in frame["model_args"]]
    frame["bytes"] = frame["N"] // frame["M"] * 4 * elements
    drawn, ((axes,),) = style.grid(1, 1, 3.6)
    for (transport, where), runs in frame.sort_values("bytes").groupby(["transport", "where"]):
        axes.errorbar(
            runs["bytes"],
            runs[OVERHEAD],
            error_bars(runs, OVERHEAD),
            **style.dots("emulated", linestyle=_STYLES[transport]),
            markerfacecolor="white" if transport == "gloo" else None,
            label=f"{transport}, {where}",
        )
    sizes = sorted(set(frame["bytes"]))
    axes.set_xscale("log", base=2)
    style.ticks(axes, sizes, [_size(size) for size in sizes])
    axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
    axes.set(xlabel="message", ylabel="emulated step over arithmetic, minus 1 (%)")
    axes.legend(loc="upper left")
    return drawn


def _size(count: int) -> str:
    return f"{count / MIB:g} MiB" if count >= MIB else f"{count / 2**10:g} KiB"
