import io
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from crew import MACHINE, Crew, experiment, measure, metrics, spec
from rich.console import Console

from repro.gpipe import Span, Timeline
from repro.harness import plan
from repro.harness.progress import (
    LEGEND,
    ProgressReporter,
    gantt,
    plan_table,
    result_line,
    summary,
)
from repro.harness.results import Place, Round, Run


def test_the_gantt_has_a_letter_for_each_slice():
    spans = (
        Span("F", 0, 0, 0, 2),
        Span("B", 0, 0, 6, 10),
        Span("F", 1, 0, 2, 4),
        Span("B", 1, 0, 4, 6),
    )
    lines = gantt(Timeline(spans, 2), 10).plain.splitlines()
    assert lines == ["    stage 0 |FF....BBBB|", "    stage 1 |..FFBB....|"]


def test_the_plan_fits_eighty_columns_and_names_what_is_skipped(tmp_path):
    made = plan.make(experiment(), "smoke", MACHINE, tmp_path)
    out = io.StringIO()
    Console(file=out, width=80).print(plan_table(made))
    lines = out.getvalue().splitlines()
    assert len(lines) == 1 + 6
    assert "skipped(needs 4 devices)" in lines[-1]
    assert summary(made) == (
        "6 runs at scale smoke on test-cpu-2c; 0 done; 2 skipped (2 x needs 4 devices); 4 to "
        "measure in 2 rounds"
    )


def recorded(step_s: float, **changed: Any) -> Run:
    record = metrics(step_s, 2, step_s=[step_s], **changed)
    round_ = Round("timed-0001", record.model_dump(), N=8, commit="")
    return Run(Place("m", "smoke", "tiny"), "x", "timed", spec(2, 4), "done", (round_,))


def test_a_ratio_names_its_baseline():
    run = recorded(0.5)
    text = (
        "  x: step 500 ms, 16.0 examples/s, 1.50x [1.40, 1.60] over K=1 at the same N, M and "
        "recompute"
    )
    speedup = (1.5, 1.4, 1.6)
    assert result_line(run, speedup) == f"{text}, idle 25% of K x step"
    emulated = replace(run, spec=run.spec.model_copy(update={"fidelity": "emulated"}))
    assert result_line(emulated, speedup).startswith("  x (emulated): step 500 ms")
    assert result_line(replace(run, differs_in="d=64"), speedup).startswith("  x (d=64): step 500")
    assert "1.50x over K=1" in result_line(run, (1.5, math.nan, math.nan))
    untraced = recorded(0.5, bubble_idle_over_total=[None])
    assert "idle" not in result_line(untraced, speedup)


def told(tmp_path: Path, *, verbose: bool = False, **options: Any) -> str:
    """What a small `repro run` prints."""
    out = io.StringIO()
    measure(tmp_path, Crew(), out=out, verbose=verbose, **options)
    return out.getvalue()


def test_one_picture_stands_for_a_group(tmp_path: Path):
    text = told(tmp_path)
    assert text.count("    stage 0 |") == 1
    assert text.index("transformer-K2-M4-") < text.index("    stage 0 |"), "the widest"
    assert text.count(LEGEND) == 1


def test_a_silent_round_shows_that_it_lives():
    out = io.StringIO()
    reporter = ProgressReporter(Console(file=out, width=200), quiet_s=0.05)
    reporter.begin([])
    time.sleep(0.5)
    reporter.end()
    lines = [
        line
        for line in out.getvalue().splitlines()
        if line.startswith("  starting 1 worker process, for ")
    ]
    assert 2 <= len(lines) <= 11
    assert lines[0].endswith("; 0 of 0 done, about 5 s left")
    said = len(out.getvalue())
    time.sleep(0.2)
    assert len(out.getvalue()) == said, "it ends with the measurements"
