import io
import time
from pathlib import Path
from typing import Any

from crew import MACHINE, Crew, experiment, measure
from rich.console import Console

from repro.gpipe import Span, Timeline
from repro.harness import plan
from repro.harness.progress import (
    LEGEND,
    ProgressReporter,
    gantt,
    plan_table,
    summary,
)


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
    numbers = "step 750 ms, examples/s 10.7, over K=1 1.67x, idle 25%, peak 1.00 GiB, rounds 2"
    (line,) = [line for line in text.splitlines() if line.startswith("  transformer-K2-M4-")]
    assert line.endswith(f": {numbers}"), "with the names that they have in the table at the end"


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
