import io
import math

from crew import MACHINE, experiment, spec
from rich.console import Console

from repro.gpipe import Span, Timeline
from repro.harness import plan
from repro.harness.progress import duration, gantt, plan_table, result_line, summary


def test_the_gantt_has_a_letter_for_each_slice():
    spans = (Span("F", 0, 0, 0, 2), Span("B", 0, 0, 6, 10), Span("F", 1, 0, 2, 4), Span("B", 1, 0, 4, 6))
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
        "6 runs at scale smoke on test-cpu-2c; 0 done; 2 skipped (2 x needs 4 devices); 4 to measure in 2 rounds"
    )


def test_the_plan_says_what_tells_runs_apart(tmp_path):
    runs = [spec(K=1, M=1, lr=0.1), spec(K=1, M=1, lr=0.2)]
    out = io.StringIO()
    Console(file=out, width=100).print(plan_table(plan.make(experiment(*runs), "smoke", MACHINE, tmp_path)))
    head, *lines = out.getvalue().splitlines()
    assert "differs in" in head
    assert ["lr=0.1" in lines[0], "lr=0.2" in lines[1]] == [True, True]


def test_a_ratio_names_its_baseline():
    row = {
        "run": "x",
        "differs_in": "",
        "fidelity": "measured",
        "step_s": 0.5,
        "size": "",
        "throughput": 16.0,
        "unit": "examples/s",
        "K": 2,
        "bubble_idle_over_total": 0.25,
    }
    row |= {"speedup_vs_k1": 1.5, "speedup_vs_k1_ci_low": 1.4, "speedup_vs_k1_ci_high": 1.6}
    text = "  x: step 500 ms, 16.0 examples/s, 1.50x [1.40, 1.60] over K=1 at the same N, M and re-materialization"
    assert result_line(row) == f"{text}, idle 25% of K x step"
    assert result_line(row | {"fidelity": "emulated"}).startswith("  x (emulated): step 500 ms")
    assert result_line(row | {"differs_in": "d=64"}).startswith("  x (d=64): step 500 ms")
    row |= {"speedup_vs_k1_ci_low": math.nan, "speedup_vs_k1_ci_high": math.nan}
    assert "1.50x over K=1" in result_line(row)
    assert "bubble" not in result_line(row | {"bubble_idle_over_total": math.nan})


def test_durations_are_for_people():
    assert [duration(s) for s in (0.2, 45, 360, 9000)] == ["1 s", "45 s", "6 min", "2.5 h"]
