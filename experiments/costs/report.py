"""How far the cost model is off: predicted beside published and measured steps, a line a source."""

from collections.abc import Iterable, Iterator
from math import ceil, expm1, log1p, nan
from statistics import median
from typing import Any

import pandas as pd

from repro.costs.error_bars import CALIBRATED, DATA_SHEET
from repro.experiments.costs.runs import ABOUT, NAME, PUBLISHED, SOURCE_ON_V100
from repro.harness.frame import Frame, runs_frame, select
from repro.harness.results import Results, Run
from repro.harness.text import digits
from repro.paper import theory
from repro.report.compare import predicted_step
from repro.report.framed import framed
from repro.report.style import model_name
from repro.report.table import Table

READS = ("advise",)  # its predicted steps


def tables(results: Results) -> list[Table]:
    frame = steps(results)
    published, timed = (select(frame, durations=kind) for kind in (DATA_SHEET, CALIBRATED))
    sources = [*published.groupby("source", sort=False), ("all published", published)]
    sources += [*timed.groupby("source", sort=False)]
    lines = [{"source": source, **_summary(of)} for source, of in sources if len(of)]
    return [framed(NAME, pd.DataFrame(lines), ABOUT)]


def steps(results: Results) -> Frame:
    """A line for each step that is published or measured, and predicted.

    Errors are predicted over real throughput, minus 1, medians over rounds: `step`; `ratio`, of the
    ratio to the first step of the same source; and `textbook`, the same of D K M / (M + K - 1),
    which knows neither layers nor devices. The first step has no ratio.
    """
    columns = ["durations", "source", "series", "id", "round", "step", "textbook"]
    frame = pd.DataFrame([*_published(results), *_timed(results)], columns=columns)
    quotients, in_round = frame[["step", "textbook"]], frame.groupby(["series", "round"])
    over_first = quotients / in_round[["step", "textbook"]].transform("first")
    over_first = over_first[in_round.cumcount() > 0] - 1
    # Lingvo published throughput over that of one GPU, in no unit.
    frame["step"] = (frame["step"] - 1).mask(frame["source"] == SOURCE_ON_V100)
    frame["ratio"], frame["textbook"] = over_first["step"], over_first["textbook"]
    of_step = frame.groupby(["durations", "source", "series", "id"], sort=False)
    return of_step[["step", "ratio", "textbook"]].median().reset_index()


def checked(results: Results) -> str:
    """`16 ratios on P40s: 3.36 % off, textbook 33.8 %`, both medians; empty without them."""
    published = select(steps(results), durations=DATA_SHEET)
    of_torchgpipe = published[published["source"] != SOURCE_ON_V100]
    count, found = of_torchgpipe["ratio"].count(), _summary(of_torchgpipe)
    ours, textbook = (digits(found[f"{name} (%) median"]) for name in ("ratio", "textbook"))
    return f"{count} ratios on P40s: {ours} % off, textbook {textbook} %" if count else ""


def _published(results: Results) -> Iterator[tuple[Any, ...]]:
    runs = runs_frame(results, NAME, fidelity="simulated", done=True)["run"]
    for source, of in PUBLISHED.values():
        for index, (spec, real) in enumerate(of()):
            run = next((run for run in runs if run.spec == spec), None)
            if run is not None:
                of_run = DATA_SHEET, source, source, index, "published"
                # Lingvo's model grows with K.
                formula = _textbook(run) / (run.K if source == SOURCE_ON_V100 else 1)
                yield *of_run, run.throughput / real, formula / real


def _timed(results: Results) -> Iterator[tuple[Any, ...]]:
    """Steps of this experiment and of `advise`."""
    for run in runs_frame(results, NAME, "advise", task="train", done=True)["run"]:
        source = f"layers timed here, {model_name(run.model)}"
        for round_ in run.rounds:
            seconds = predicted_step(round_, run.D)
            if seconds is not None:
                of_run = CALIBRATED, source, (run.place, run.model), run.id, round_.name
                yield *of_run, round_.step_s / seconds, _textbook(run) / round_.throughput


def _textbook(run: Run) -> float:
    return run.D * theory.speedup_over_k1(run.K, run.M, "plain")


def _summary(frame: Frame) -> dict[str, float]:
    ratio, textbook, step = (sizes(frame[name]) for name in ("ratio", "textbook", "step"))
    in_percent = {
        "ratio (%) median": median(ratio) if ratio else nan,
        "ratio (%) nine of ten": nine_of_ten(ratio),
        "ratio (%) worst": max(ratio, default=nan),
        "textbook (%) median": median(textbook) if textbook else nan,
        "step (%) nine of ten": nine_of_ten(step),
    }
    return {"steps": len(frame)} | {name: 100 * expm1(size) for name, size in in_percent.items()}


def sizes(errors: pd.Series) -> list[float]:
    """The sizes of errors; half as fast and twice as fast are equally wrong."""
    return [abs(log1p(error)) for error in errors.dropna()]


def nine_of_ten(sizes: Iterable[float]) -> float:
    """The smallest that nine of ten, or more, do not exceed; NaN of none."""
    ordered = sorted(sizes)
    return ordered[ceil(0.9 * len(ordered)) - 1] if ordered else nan
