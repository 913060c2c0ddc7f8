"""How far simulations of steps that others published are off.

Shown by the table of `costs` and by Table 2.
"""

from collections.abc import Iterable, Iterator
from math import ceil, expm1, log1p, nan
from typing import Any

import pandas as pd

from repro.costs.error_bars import DATA_SHEET
from repro.experiments.published import PUBLISHED, SOURCE_ON_V100
from repro.harness.frame import Frame, runs_frame
from repro.harness.results import Results, Run
from repro.harness.text import percent
from repro.paper import theory


def of_published(results: Results) -> Iterator[tuple[Any, ...]]:
    """What `errors` takes of each published step that is simulated."""
    runs = runs_frame(results, "costs", fidelity="simulated", done=True)["run"]
    for source, of in PUBLISHED.values():
        for index, (spec, real) in enumerate(of()):
            run = next((run for run in runs if run.spec == spec), None)
            if run is not None:
                of_run = DATA_SHEET, source, source, index, "published"
                # Lingvo's model grows with K.
                formula = textbook(run) / (run.K if source == SOURCE_ON_V100 else 1)
                yield *of_run, run.throughput / real, formula / real


def textbook(run: Run) -> float:
    """The speed-up over one device by the formula that knows neither layers nor devices."""
    return run.D * theory.speedup_over_k1(run.K, run.M, "plain")


def errors(lines: Iterable[tuple[Any, ...]]) -> Frame:
    """A line for each step that is published or measured, and predicted.

    Errors are predicted over real throughput, minus 1, medians over rounds: `step`; `ratio`, of the
    ratio to the first step of the same source; and `textbook`, the same of D K M / (M + K - 1),
    which knows neither layers nor devices. The first step has no ratio.
    """
    columns = ["durations", "source", "series", "id", "round", "step", "textbook"]
    frame = pd.DataFrame(lines, columns=columns)
    quotients, in_round = frame[["step", "textbook"]], frame.groupby(["series", "round"])
    over_first = quotients / in_round[["step", "textbook"]].transform("first")
    over_first = over_first[in_round.cumcount() > 0] - 1
    # Lingvo published throughput over that of one GPU, in no unit.
    frame["step"] = (frame["step"] - 1).mask(frame["source"] == SOURCE_ON_V100)
    frame["ratio"], frame["textbook"] = over_first["step"], over_first["textbook"]
    of_step = frame.groupby(["durations", "source", "series", "id"], sort=False)
    return of_step[["step", "ratio", "textbook"]].median().reset_index()


def of_model(results: Results, model: str) -> str:
    """`8 torchgpipe ratios: errors up to 23.4 %`; empty without any."""
    frame = errors(of_published(results)).dropna(subset="ratio")
    frame = frame[frame["source"].str.contains(f", {model} on")]
    if frame.empty:
        return ""
    whose = frame["source"].iloc[0].partition(",")[0]
    return f"{len(frame)} {whose} ratios: errors up to {percent(expm1(max(sizes(frame['ratio']))))}"


def sizes(errors: pd.Series) -> list[float]:
    """The sizes of errors; half as fast and twice as fast are equally wrong."""
    return [abs(log1p(error)) for error in errors.dropna()]


def nine_of_ten(sizes: Iterable[float]) -> float:
    """The smallest that nine of ten, or more, do not exceed; NaN of none."""
    ordered = sorted(sizes)
    return ordered[ceil(0.9 * len(ordered)) - 1] if ordered else nan
