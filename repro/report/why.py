"""Why each measured run is as slow as it is: one table an experiment, read off the recorded spans.

The gains are simulated with measured costs (`gpipe.schedule.what_if`); `repro why RUN` tells more
of one run.
"""

from math import nan
from typing import TYPE_CHECKING, Any

from repro.gpipe.schedule.kinds import SCHEDULES, make_schedule
from repro.gpipe.schedule.what_if import CHANGES, Why
from repro.report.compare import Row, rows_of, settings
from repro.report.declared import report_of
from repro.report.style import model_name
from repro.report.table import EMPTY, Table, number, percent

if TYPE_CHECKING:
    from repro.harness.results import Results

_PATH = ("F", "R", "B", "transfer", "gap")
_NOTE = (
    "Of the step whose spans each run's newest round kept. Path: shares of the critical path, "
    "backwards from the end of the step; transfer is the wait for a message, gap what is neither "
    "work nor a message; the rest is set-up and update. Replayed: the unchanged schedule with the "
    "measured mean F, R and B of each stage, median gaps, and messages as fits their arrivals, "
    "over the measured step, minus 1. Gains (simulated with these costs): that replay's step over "
    "the changed one's. "
)


def tables(results: "Results") -> list[Table]:
    """One for every experiment with traced, measured runs of ours with K > 1."""
    rows = [
        row
        for row in rows_of(results, library="repro", fidelity="measured", status="done")
        if row["K"] > 1 and row["schedule"] in SCHEDULES
    ]
    names = dict.fromkeys(row["experiment"] for row in rows)
    names = [name for name in names if getattr(report_of(name), "WHY", True)]
    found = (
        _table(results, name, [row for row in rows if row["experiment"] == name]) for name in names
    )
    return [table for table in found if table is not None]


def _table(results: "Results", experiment: str, rows: list[Row]) -> Table | None:
    """One line a run that has a timeline; None where none has."""
    from pandas import DataFrame

    lines = []
    for setting in settings(results, rows):
        for row in setting.rows:
            spec = results.specs[row["run"]]
            if spec.task == "train" and (timeline := results.timeline(row)) is not None:
                schedule = make_schedule(spec.schedule, spec.K, spec.M, spec.checkpoint)
                place = {"model": model_name(spec.model), "K": spec.K, "M": spec.M}
                end = {"setting": setting.details}
                try:
                    why = Why.of(timeline, schedule, spec.N // spec.D)
                except ValueError as error:
                    lines.append(
                        (
                            place | {"verdict": str(error)} | end,
                            place | {"verdict": str(error)} | end,
                        )
                    )
                else:
                    lines.append(
                        (place | _shown(why) | end, place | {"run": row["run"]} | _data(why) | end)
                    )
    if not lines:
        return None
    present = {name for _, data in lines for name, value in data.items() if value == value}
    shown, data = (DataFrame([line[n] for line in lines]) for n in (0, 1))
    shown = shown.drop(
        columns=[name for name in CHANGES if name in shown and name not in present]
    ).fillna(EMPTY)
    note = _NOTE + " ".join(
        f"{name[0].upper()}{name[1:]}: {CHANGES[name]}." for name in CHANGES if name in present
    )
    title = f"{experiment}: why it is slow, measured, and what changes would give, simulated"
    return Table(f"{experiment}_why", title, note, shown, data, experiment, folded=True)


def _shown(why: Why) -> dict[str, str]:
    data = _data(why)
    cells = {"step (ms)": number(1e3 * why.timeline.step_time, 1)}
    cells |= {f"path {kind}": percent(why.shares[kind]) for kind in _PATH}
    cells |= {"replayed": f"{why.error:+.1%}"}
    return (
        cells | {name: number(data[name], unit="x") for name in CHANGES} | {"verdict": why.verdict}
    )


def _data(why: Why) -> dict[str, Any]:
    numbers = {
        "step_s": why.timeline.step_time,
        **{f"path {kind}": share for kind, share in why.shares.items()},
    }
    numbers |= {"replayed": why.error}
    for name in CHANGES:
        gain = why.factor(name)
        numbers[name] = nan if gain is None else gain
    return numbers | {"verdict": why.verdict}
