"""Of the rounds of a run: the parts of its step."""

import pandas as pd

from repro.harness.frame import Frame
from repro.harness.results import Run
from repro.harness.statistics import interval
from repro.report.style import PARTS


def parts(run: Run | None) -> dict[str, float]:
    """Share of K x step time of each of `PARTS`, median over rounds; empty without a breakdown."""
    breakdowns = [round_.breakdown for round_ in run.rounds if round_.breakdown] if run else []
    if not breakdowns:
        return {}
    return {part: interval([shares[part] for shares in breakdowns])[0] for part in PARTS}


def with_parts(frame: Frame) -> Frame:
    """A frame of runs with a column for each of `PARTS`; NaN without a breakdown."""
    shares = [parts(run) for run in frame["run"]]
    return frame.join(pd.DataFrame(shares, frame.index, [*PARTS], dtype=float))


def fits(run: Run | None) -> bool | None:
    """Whether the counted peak of every stage of a modelled run fits its device.

    None where that is not known: the run is not modelled, or was not run.
    """
    if run is None or not run.done or not run.rounds:
        return None
    modelled, peaks = run.rounds[-1].modelled, run.rounds[-1].record.peak_bytes
    if modelled is None or modelled.memory is None:
        return None
    if not modelled.batch:
        return False  # not even micro-batches of one example
    return max(peaks) <= modelled.memory if peaks else None
