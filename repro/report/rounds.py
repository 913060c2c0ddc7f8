"""Of the rounds of a run: the parts of its step."""

import pandas as pd

from repro.harness.frame import Frame
from repro.harness.results import Run
from repro.report.style import PARTS


def with_parts(frame: Frame) -> Frame:
    """A frame of runs with the share of K x step of each of `PARTS`; NaN without a breakdown."""
    medians = [
        pd.DataFrame([each.breakdown for each in run.rounds], columns=[*PARTS]).median()
        for run in frame["run"]
    ]
    return frame.join(pd.DataFrame(medians, frame.index, [*PARTS], dtype=float))


NOT_FITTING = "counted not to fit the device"


def fits(run: Run) -> bool:
    """Whether no stage of a run is counted not to fit its device.

    That is known of modelled runs alone, and true of all others.
    """
    modelled = run.rounds[-1].modelled if run.done else None
    if modelled is None or modelled.memory is None:
        return True
    # Without a mini-batch, not even micro-batches of one example fit.
    peaks = run.rounds[-1].record.peak_bytes or [0]
    return modelled.batch > 0 and max(peaks) <= modelled.memory
