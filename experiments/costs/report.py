"""How far the cost model is off: predicted beside published and measured steps, a line a source."""

from collections.abc import Iterator
from math import expm1, nan
from statistics import median
from typing import Any

import pandas as pd

from repro.costs.error_bars import CALIBRATED, DATA_SHEET
from repro.experiments.costs.runs import ABOUT, NAME
from repro.experiments.published_errors import errors, nine_of_ten, of_published, sizes, textbook
from repro.harness.frame import Frame, runs_frame, select
from repro.harness.results import Results
from repro.report.compare import predicted_step
from repro.report.framed import framed
from repro.report.style import model_name
from repro.report.table import Table

READS = ("advise",)  # its predicted steps


def tables(results: Results) -> list[Table]:
    frame = steps(results)
    others, timed = (select(frame, durations=kind) for kind in (DATA_SHEET, CALIBRATED))
    sources = [*others.groupby("source", sort=False), ("all published", others)]
    sources += [*timed.groupby("source", sort=False)]
    lines = [{"source": source, **_summary(of)} for source, of in sources if len(of)]
    return [framed(NAME, pd.DataFrame(lines), ABOUT)]


def steps(results: Results) -> Frame:
    """The errors of all steps that are published or were timed here."""
    return errors([*of_published(results), *_timed(results)])


def _timed(results: Results) -> Iterator[tuple[Any, ...]]:
    """Steps of this experiment and of `advise`."""
    for run in runs_frame(results, NAME, "advise", task="train", done=True)["run"]:
        source = f"layers timed here, {model_name(run.model)}"
        for round_ in run.rounds:
            seconds = predicted_step(round_)
            if seconds is not None:
                of_run = CALIBRATED, source, (run.place, run.model), run.id, round_.name
                yield (*of_run, round_.step_s / seconds, textbook(run) / round_.throughput)


def _summary(frame: Frame) -> dict[str, float]:
    ratio, formula, step = (sizes(frame[name]) for name in ("ratio", "textbook", "step"))
    in_percent = {
        "ratio (%) median": median(ratio) if ratio else nan,
        "ratio (%) nine of ten": nine_of_ten(ratio),
        "ratio (%) worst": max(ratio, default=nan),
        "textbook (%) median": median(formula) if formula else nan,
        "step (%) nine of ten": nine_of_ten(step),
    }
    return {"steps": len(frame)} | {name: 100 * expm1(size) for name, size in in_percent.items()}
