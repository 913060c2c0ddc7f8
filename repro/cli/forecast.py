"""What `repro simulate` tells people: a table of steps, where they go, one of them drawn, and which K and M to take."""

from typing import TYPE_CHECKING, Any

from repro.harness.spec import assigned
from repro.harness.terminal import memory, table_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    from repro.cli.simulate import SimulateOptions, Source
    from repro.gpipe import Timeline

_ROWS = 16  # stages of which a step is drawn
_SMALL = 5e-4  # a share of the step that would be printed as 0.0 %


def story(options: "SimulateOptions", source: "Source", points: list[dict[str, Any]]) -> list["RenderableType"]:
    """The answer for people; `points` are those of the JSON, with their timelines."""
    from repro.gpipe import Timeline

    first = points[0]
    link = f", link {options.link_gbps:g} Gbit/s" if options.link_gbps else ""
    named = f"{source.model} ({assigned(source.model_args) or 'its defaults'})"
    head = (
        f"simulated: {named} on {source.words}{link}\n"
        f"N={options.N}, schedule {options.schedule}, re-materialization {options.checkpoint}, "
        f"cut by {options.balance}, optimizer {options.optimizer}\n"
    )
    kinds = [kind for kind in first["breakdown"] if any(abs(one["breakdown"][kind]) > _SMALL for one in points)]
    shares = [(str(one["K"]), str(one["M"]), *(f"{one['breakdown'][kind]:.1%}" for kind in kinds)) for one in points]
    title = (
        "\nshares of K x step, simulated; idle is bubble (for which equal stages would wait as well), imbalance and "
        "transfer"
    )
    return [
        head,
        _steps(source, points),
        _reading(source),
        title,
        table_of(("K", "M", *kinds), shares, ()),
        *_drawn(Timeline.from_rows(first["timeline"], first["K"]), first["M"]),
        f"\n{advice(points, source.memory)}",
    ]


def advice(points: list[dict[str, Any]], most: int | None) -> str:
    """One line: the fastest K and M, of those that fit where that is known; if none does, the leanest."""
    fitting = [one for one in points if not _beyond(one["peak_bytes"], most)]
    if not fitting:
        lean = min(points, key=lambda one: max(one["peak_bytes"]))
        return (
            f"none of these fits into the device's {memory(most or 0)}: the leanest, K={lean['K']}, M={lean['M']}, "
            f"takes {memory(max(lean['peak_bytes']))} on its fullest stage; try a larger K or M, or a smaller N"
        )
    best = min(fitting, key=lambda one: (one["step_s"], one["K"]))
    which = "fastest" if len(fitting) == len(points) else "fastest that fits"
    if best["peak_bytes"] is None:
        peak = "its peak is not known"
    else:
        room = "the device's memory is not known" if most is None else f"the device has {memory(most)}"
        peak = f"peak {memory(max(best['peak_bytes']))} on the fullest stage ({room})"
    alone = ", which would not fit" if _beyond(best["peak_bytes_k1"], most) else ""
    return (
        f"{which}: K={best['K']}, M={best['M']}, {best['throughput']:,.1f} {best['unit']}, "
        f"{best['speedup_vs_k1']:.2f}x over K=1 at the same M and N{alone}; {peak}"
    )


def _steps(source: "Source", points: list[dict[str, Any]]) -> "RenderableType":
    first = points[0]
    over = f"over K={first['K']}, M={first['M']}"
    columns = ("K", "M", "step (ms)", first["unit"], "over K=1", over, "idle", "peak", "K=1 peak")
    rows = [
        (
            str(one["K"]),
            str(one["M"]),
            f"{1e3 * one['step_s']:,.2f}",
            f"{one['throughput']:,.1f}",
            f"{one['speedup_vs_k1']:.2f}x",
            f"{one['speedup_vs_first']:.2f}x",
            f"{one['bubble_idle_over_total']:.1%}",
            _peak(one["peak_bytes"], source.memory),
            _peak(one["peak_bytes_k1"], source.memory),
        )
        for one in points
    ]
    return table_of(columns, rows, ())


def _reading(source: "Source") -> str:
    """What the columns of the first table are."""
    much = f"; ! is more than the device's {memory(source.memory)}" if source.memory else ""
    return (
        "over K=1: the step of one stage at the same M and N, with as much memory as it takes, over this one; idle: "
        f"share of K x step\npeak: tensors of the fullest stage, counted{much}"
    )


def _drawn(timeline: "Timeline", M: int) -> list["RenderableType"]:
    """The step of the first K and M; of many stages nothing."""
    from repro.harness.progress import gantt

    if timeline.stages > _ROWS:
        return []
    title = f"\nthe step at K={timeline.stages}, M={M}: F forward, R recompute, B backward, U update, . idle"
    return [title, gantt(timeline, 72)]


def _beyond(peaks: list[int] | None, most: int | None) -> bool:
    """Whether the fullest stage is known to take more than there is."""
    return peaks is not None and most is not None and max(peaks) > most


def _peak(peaks: list[int] | None, most: int | None) -> str:
    return memory(max(peaks)) + "!" * _beyond(peaks, most) if peaks else "-"
