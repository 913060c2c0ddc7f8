"""Of the rounds of a run: the parts of its step."""

import pandas as pd

from repro.harness.frame import Frame
from repro.harness.results import Run
from repro.report.style import PARTS


def with_parts(frame: Frame) -> Frame:
    """A frame of runs with the share of K x step of each of `PARTS`; NaN without a breakdown."""
    lines = []
    for run in frame["run"]:
        breakdowns = pd.DataFrame(
            [round_.breakdown or {} for round_ in run.rounds], columns=[*PARTS]
        )
        lines.append(breakdowns.median())
    return frame.join(pd.DataFrame(lines, frame.index, [*PARTS], dtype=float))


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
