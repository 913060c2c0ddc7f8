"""What recomputation costs in time and saves in memory, and what others say that it costs."""

from dataclasses import dataclass
from math import isnan, nan

from experiments.methods.recorded import (
    Recomputing,
    extra_time,
    method_of,
    recompute_share,
)
from experiments.methods.runs import NAME, WORK
from repro.harness.results import Results, Run
from repro.paper import breakdown as paper_breakdown
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
from repro.report.table import EMPTY, Table


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


@dataclass(frozen=True)
class Claim:
    """A published sentence on what recomputation costs.

    Attributes:
        text: of the claim.
        percent: that it says.
        of_step: whether it is a share of the step with recomputation, or else the time that it
            adds to a step without.
        arithmetic: the percent of one device with F:R:B = 1:1:2.
    """

    text: str
    percent: float
    of_step: bool
    arithmetic: float

    def read(self, extra: float) -> float:
        """The claimed quantity in percent, of the extra time in percent."""
        return 100 * extra / (100 + extra) if self.of_step else extra


# The last is in the paper's pie (NeurIPS Table 4), the others are in lecture notes on the paper.
_PIE = {slice_.part: slice_.percent for slice_ in paper_breakdown()}
CLAIMS = (
    Claim("a third more time", 100 / 3, of_step=False, arithmetic=100 / 3),
    Claim("a quarter of the step", 25.0, of_step=True, arithmetic=25.0),
    Claim(f"{_PIE['recompute']:g} % of the step", _PIE["recompute"], of_step=True, arithmetic=25.0),
)


def recompute_claims(results: Results) -> Table:
    """Three published costs of recomputation beside the measured ones."""
    runs: dict[int, Recomputing] = {}
    for line in _recomputing(results):
        if line.run.remat == "always":
            runs.setdefault(line.run.K, line)

    def measured(claim: Claim, devices: int) -> Spread:
        line = runs.get(devices)
        if line is None:
            return nan, nan, nan
        value, low, high = _extra(results, line)
        return claim.read(value), claim.read(low), claim.read(high)

    def verdict(claim: Claim) -> Cell:
        value, low, high = measured(claim, 1)
        if isnan(low):
            return plain(EMPTY if isnan(value) else "too few rounds")
        if low <= claim.percent <= high:
            alike = [other.percent for other in CLAIMS if other.of_step == claim.of_step]
            rivals = [f"{p:g} %" for p in alike if p != claim.percent and low <= p <= high]
            cannot_tell = f", and so is {' and '.join(rivals)}" if rivals else ""
            return plain(f"inside the interval{cannot_tell}")
        side = "more" if value > claim.percent else "less"
        return plain(f"{abs(value - claim.percent):.1f} points {side} here")

    def column(devices: int) -> Column[Claim]:
        return spread(
            ("measured (%)", f"K={devices}"),
            lambda claim: estimate(measured(claim, devices), ".1f"),
        )

    columns: list[Column[Claim]] = [
        Column("claim", lambda claim: plain(claim.text)),
        Column(("quoted", "%"), lambda claim: amount(claim.percent, 1)),
        Column(("arithmetic", "%"), lambda claim: amount(claim.arithmetic, 1)),
        *(column(devices) for devices in sorted(runs)),
        Column("on one device", verdict),
    ]
    note = (
        "A third is what F adds to F + B when B takes twice as long, and a quarter is its share of "
        "F + R + B: one fact in two words. The paper's pie has 22.5 % of a step that holds other "
        "parts too."
    )
    title = "Does recomputation cost a third, a quarter, or 22.5 %?"
    return declared("methods_recompute_claims", title, note, CLAIMS, columns, NAME)
