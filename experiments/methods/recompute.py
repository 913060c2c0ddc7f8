"""What recomputation costs in time and saves in memory."""

from math import nan

from experiments.methods.recorded import (
    Recomputing,
    extra_time,
    method_of,
    recompute_share,
)
from experiments.methods.runs import NAME, WORK
from repro.harness.results import Results, Run
from repro.report.compare import rows_of, where
from repro.report.grid import (
    Cell,
    Column,
    amount,
    declared,
    estimate,
    milliseconds,
    place_column,
    plain,
    share,
    spread,
    status_of,
)
from repro.report.ratio import ideal
from repro.report.rounds import Spread
from repro.report.table import Table


def _recomputing(results: Results) -> list[Recomputing]:
    """The runs of one device and of GPipe's pipeline on the first model."""
    rows = [
        run
        for run in rows_of(results, experiment=NAME, group=WORK[0])
        if method_of(run) in ("single", "gpipe")
    ]
    never = {(run.place, run.K): run for run in rows if run.remat == "never"}
    rows.sort(key=lambda run: (run.place, run.K))
    return [Recomputing(run, never.get((run.place, run.K))) for run in rows]


def _extra(results: Results, line: Recomputing) -> Spread:
    """Extra time in percent; 0 of the run itself, NaN where one of them is missing."""
    if line.never is None or not (line.run.done and line.never.done):
        return nan, nan, nan
    if line.run is line.never:
        return 0.0, nan, nan
    value, low, high = extra_time(results, line.run, line.never)
    return 100 * value, 100 * low, 100 * high


def _ideal_extra(run: Run) -> float:
    """The same of equal stages with F:R:B = 1:1:2 and free messages, in percent."""
    with_remat = ideal(run.K, run.M, run.schedule, run.remat)
    without = ideal(run.K, run.M, run.schedule, "never")
    if with_remat is None or without is None:
        return nan
    return 100 * (with_remat.step_time / without.step_time - 1)


def recomputation(results: Results) -> Table:
    """Time against memory for each rule of recomputation."""

    def memory_saved(line: Recomputing) -> Cell:
        base = line.never.peak_gib_max if line.never else nan
        return share(1 - line.run.peak_gib_max / base)

    def step(line: Recomputing) -> Cell:
        run = line.run
        return milliseconds(run.step_s) if run.done else Cell(text=status_of(run))

    lines = _recomputing(results)
    columns: list[Column[Recomputing]] = [
        *place_column(lines, lambda line: where(results, line.run)),
        Column("K", lambda line: plain(line.run.K)),
        Column("recomputes", lambda line: plain(line.run.remat.replace("_", " "))),
        Column(("step (ms)", "measured"), step),
        spread(("extra time (%)", "measured"), lambda line: estimate(_extra(results, line), ".1f")),
        Column(("extra time (%)", "ideal"), lambda line: amount(_ideal_extra(line.run), 1)),
        Column(("recompute", "measured"), lambda line: share(recompute_share(line.run)[0])),
        Column(("peak MiB", "measured"), lambda line: amount(1024 * line.run.peak_gib_max, 1)),
        Column(("memory saved", "measured"), memory_saved),
    ]
    note = (
        "Extra time and saved memory are against the same K without recomputation, on the "
        "Transformer; recompute is its share of K x step. The ideal has equal stages, F:R:B = "
        "1:1:2 and free messages."
    )
    title = "What time does recomputation cost, and what memory does it save?"
    return declared("methods_recomputation", title, note, lines, columns, NAME)
