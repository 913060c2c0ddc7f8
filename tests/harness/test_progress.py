import io
import time
from pathlib import Path

from crew import MACHINE, Crew, experiment, measure
from rich.console import Console

from repro.gpipe import Span, Timeline
from repro.harness import plan
from repro.harness.progress import LEGEND, ProgressReporter, gantt, plan_table, summary


def test_the_gantt_has_a_letter_for_each_slice():
    first = (Span("F", 0, 0, 0, 2), Span("B", 0, 0, 6, 10))
    spans = (*first, Span("F", 1, 0, 2, 4), Span("B", 1, 0, 4, 6))
    lines = gantt(Timeline(spans, 2), 10).plain.splitlines()
    assert lines == ["    stage 0 |FF....BBBB|", "    stage 1 |..FFBB....|"]


def test_the_plan_fits_eighty_columns_and_names_what_is_skipped(tmp_path: Path):
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


def test_one_picture_stands_for_a_group_and_a_line_has_the_names_of_the_table(tmp_path: Path):
    out = io.StringIO()
    measure(tmp_path, Crew(), out=out)
    text = out.getvalue()
    assert text.count("    stage 0 |") == 1
    assert text.index("transformer-K2-M4-") < text.index("    stage 0 |"), "the widest"
    assert text.count(LEGEND) == 1
    (line,) = [line for line in text.splitlines() if line.startswith("  transformer-K2-M4-")]
    numbers = "step 750 ms, examples/s 10.7, over K=1 1.67x, idle 25%, peak 1.00 GiB, rounds 2"
    assert line.endswith(f": {numbers}")


def test_a_silent_round_shows_that_it_lives():
    out = io.StringIO()
    reporter = ProgressReporter(Console(file=out, width=200), quiet_s=0.05)
    reporter.begin([])
    time.sleep(0.5)
    reporter.end()
    said = out.getvalue()
    lines = [line for line in said.splitlines() if line.startswith("  starting 1 worker process, ")]
    assert 2 <= len(lines) <= 11
    assert lines[0].endswith("; 0 of 0 done, about 5 s left")
    time.sleep(0.2)
    assert out.getvalue() == said, "it ends with the measurements"
