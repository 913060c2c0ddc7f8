"""What a terminal shows: the plan and tables."""

import io
from pathlib import Path

import pytest
from fakes import MACHINE, experiment
from rich.console import Console

from repro.harness import plan, progress, run_table
from repro.harness.progress import ProgressReporter, summary
from repro.harness.terminal import show, table_of


def test_the_plan_fits_eighty_columns_and_names_what_is_skipped(tmp_path: Path, monkeypatch):
    made = plan.make(experiment(), "smoke", MACHINE, tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    out = io.StringIO()
    monkeypatch.setattr(out, "isatty", lambda: True)
    show(run_table.planned(made), out)
    common, _, _, *lines = out.getvalue().splitlines()
    assert common == "D 1, recompute always, fidelity measured"
    assert len(lines) == 6
    assert "skipped(needs 4 devices)" in lines[-1]
    assert summary([made]) == (
        "6 runs at scale smoke on test-cpu-2c; 0 done; 2 skipped (2 x needs 4 devices); 4 to "
        "measure"
    )


def test_without_a_terminal_a_line_a_minute_says_what_runs(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as notebooks do; it makes no terminal of a pipe
    out, now = io.StringIO(), [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    reporter = ProgressReporter(tmp_path / "log", Console(file=out, highlight=False, width=200))
    for seconds in (59.0, 60.0, 61.0):
        now[0] = seconds
        reporter.note("runs")
    assert out.getvalue() == ": runs; 0 of 0 measured\n"


def test_the_time_left_is_what_each_run_took_so_far_times_those_to_come(tmp_path: Path):
    now = [100.0]
    console = Console(file=io.StringIO(), get_time=lambda: now[0])
    reporter = ProgressReporter(tmp_path / "log", console)
    made = plan.make(experiment(), "smoke", MACHINE, tmp_path)
    reporter.begin([made])
    assert reporter._state() == "0 of 8 measured"
    for run in made.outstanding:
        now[0] += 30.0
        reporter.advance(run)
        if now[0] == 160.0:
            assert reporter._state() == "2 of 8 measured, about 3 min left"
    assert reporter._state() == "8 of 8 measured"
    reporter.end()


@pytest.mark.parametrize(
    ("is_terminal", "width", "lines"), [(True, 40, 2), (True, 80, 3), (False, 80, 2)]
)
def test_a_table_keeps_every_word(is_terminal: bool, width: int, lines: int, monkeypatch):
    """On a terminal, a column of words takes several lines if enough is left for it."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("FORCE_COLOR", "1")  # as notebooks do; it makes no terminal of a pipe
    out = io.StringIO()
    monkeypatch.setattr(out, "isatty", lambda: is_terminal)
    row = {"run": "r" * 40, "nothing": "-", "why": "word " * 10}
    show([table_of([row], wrapped=("why",))], out)
    assert len(out.getvalue().splitlines()) == lines
    assert "r" * 40 in out.getvalue()
    assert out.getvalue().split().count("word") == 10
    assert "nothing" not in out.getvalue()
