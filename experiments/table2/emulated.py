"""What the runtime itself costs at up to K=8: emulated steps of Table 2 against the same steps on a virtual clock."""

from collections.abc import Iterable
from math import isnan
from statistics import median
from typing import TYPE_CHECKING, Any

from experiments.table2.recorded import (
    MODELS,
    NAME,
    Protocol,
    another_size,
    places,
    protocol,
    warning,
)
from repro.gpipe.schedule.kinds import make_schedule
from repro.harness.statistics import interval
from repro.report.ratio import NO_INTERVAL
from repro.report.style import model_name
from repro.report.table import Table, number, table_of_frames
from repro.report.texts import clock
from repro.simulate import StageCosts, simulate

if TYPE_CHECKING:
    from repro.harness.results import Results


def tables(results: "Results") -> list[Table]:
    """One line a cell; nothing before anything was emulated."""
    from pandas import DataFrame

    found = [some for model in MODELS if (some := protocol(results, model, "emulated"))]
    lines = _lines(found)
    if not lines:
        return []
    note = warning(found) + (
        "Emulated: K processes of the real engine, schedule and messages, of which each stage "
        "waits as long as it is modelled to compute, times stretch, and seconds are divided by it "
        "again. Simulated: the same stage costs and link laid on a virtual clock. "
        f"{clock([line['stretch'] for line in lines])} More: emulated over simulated, minus 1, of "
        f"each round; the median and its bootstrap 95 % interval, {NO_INTERVAL}. All processes "
        "share the cores of one machine, so at K above their number it also holds what they wait "
        "for each other; messages are cut down to 64 KiB. What a wait ends late the next one that "
        "begins at once makes good, so lateness of timers is not in it, nor all of what waiting "
        f"for a core adds. More goes {_range(lines)}."
    )
    shown = DataFrame([_shown(line) for line in lines])
    size = another_size(found)
    title = f"Table 2 emulated against simulated{', ' * bool(size)}{size}: what the runtime costs"
    return [table_of_frames("table2_emulated", title, note, shown, DataFrame(lines), NAME)]


def sentence(results: "Results") -> str:
    """What Table 2's note says of its emulated cells: their clock and what the runtime adds; nothing without any."""
    lines = _lines(some for model in MODELS if (some := protocol(results, model, "emulated")))
    if not lines:
        return ""
    stretches = [line["stretch"] for line in lines]
    return (
        f"{clock(stretches)} Emulated steps over the same steps simulated, minus 1: "
        f"{_range(lines)}."
    )


def _lines(found: Iterable[Protocol]) -> list[dict[str, Any]]:
    return [line for some in found for at in places(some.model) if (line := _line(some, *at))]


def _range(lines: list[dict[str, Any]]) -> str:
    """The least and the most that the runtime adds to a step, and where."""
    least, worst = (end(lines, key=lambda line: line["more"]) for end in (min, max))
    return (
        f"from {_percent(least['more'])} % ({_where(least)}) to {_percent(worst['more'])} % "
        f"({_where(worst)})"
    )


def _line(some: Protocol, K: int, M: int) -> dict[str, Any] | None:
    """One cell as plain numbers; None where it was not emulated."""
    row = some.rows.get((K, M))
    costs = some.modelled(K, M)
    if row is None or costs is None:
        return None
    spec = some.rows[K, M].spec
    stretch = spec.stretch or 1.0
    schedule = make_schedule(spec.schedule, K, M, spec.checkpoint)
    should = simulate(schedule, StageCosts.from_plain(costs.stages.model_dump())).step_time
    steps = some.steps(K, M)
    more, low, high = interval([step / should - 1 for step in steps])
    line = {
        "model": some.model,
        "K": K,
        "M": M,
        "N": row.N,
        "stretch": stretch,
        "rounds": len(steps),
    }
    line |= {"simulated": should, "emulated": median(steps)}
    return line | {
        "more": more,
        "low": low,
        "high": high,
        "lost": stretch * (median(steps) - should),
    }


def _shown(line: dict[str, Any]) -> dict[str, str]:
    percent = f"{_percent(line['more'])} %"
    if not isnan(line["low"]):
        percent += f" [{_percent(line['low'])}, {_percent(line['high'])}]"
    return {
        "model": model_name(line["model"]),
        **{name: str(line[name]) for name in ("K", "M", "N", "rounds")},
        "stretch": f"{line['stretch']:g}",
        "step simulated (s)": number(line["simulated"], 3),
        "step emulated (s)": number(line["emulated"], 3),
        "more": percent,
        "more, real ms a step": number(1e3 * line["lost"], 1),
    }


def _percent(share: float) -> str:
    return f"{100 * share:+.{1 if abs(share) < 1 else 0}f}"


def _where(line: dict[str, Any]) -> str:
    return f"{model_name(line['model'])}, K={line['K']}, M={line['M']}"
