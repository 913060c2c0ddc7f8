"""Resume, faults and --force, with workers that are no processes."""

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import MACHINE, FakeWorkers, experiment, measure, spec
from rich.console import Console

import repro.cli.run as cli
from repro.harness import plan, rehearsal, runner
from repro.harness.catalog import ORDER, find
from repro.harness.frame import all_runs
from repro.harness.journal import journals
from repro.harness.progress import ProgressReporter
from repro.harness.request import Request, Result, Status
from repro.harness.results import Results, load
from repro.harness.spec import Experiment, Group
from repro.report import page

ALL = [(1, 1), (1, 4), (2, 1), (2, 4)]


@pytest.fixture
def run(tmp_path: Path):
    """Measure with these workers; returns the exit status."""

    def go(workers: FakeWorkers, of: Experiment | None = None, *only: str, **options: Any) -> int:
        with (tmp_path / "output.txt").open("a") as out:
            return measure(tmp_path, workers, of, only, out=out, **options)

    return go


def status(results: Path, K: int, M: int) -> str:
    """Status of a run and the number of its rounds."""
    (run,) = [run for run in load(results).runs if (run.K, run.M) == (K, M)]
    return f"{run.status}, {len(run.rounds)}"


class Crowded(FakeWorkers):
    """Its memory does not hold several runs."""

    def measure_all(
        self, requests: tuple[Request, ...], deadline: float, *, fresh: bool = False
    ) -> dict[int, Result | Status]:
        if len(requests) > 1:
            return {len(requests) - 1: Status("oom", "can't allocate memory")}
        return super().measure_all(requests, deadline)


@pytest.mark.parametrize(("workers", "together"), [(FakeWorkers(), 4), (Crowded(), 0)])
def test_what_memory_does_not_hold_is_measured_in_turn(
    run, tmp_path: Path, workers: FakeWorkers, together: int
):
    assert run(workers) == 0
    assert workers.asked == [*ALL, *ALL]
    (journal,) = journals(tmp_path)
    assert [len(event.together) for event in journal.rounds] == [together, together]
    done = [each for each in load(tmp_path).runs if each.done]
    assert [each.in_turn for each in done] == [not together] * len(ALL)


def test_runs_of_one_process_that_no_clock_times_are_made_side_by_side(run, tmp_path: Path):
    sizes = []

    class Counting(FakeWorkers):
        def measure_all(self, requests, deadline, *, fresh=False):
            sizes.append((len(requests), fresh))
            return super().measure_all(requests, deadline)

    fields: Any = {"fidelity": "simulated", "profile": "v100", "trace": False}
    simulated = [spec(1, 4, seed=seed, **fields) for seed in range(9)]
    assert run(Counting(), experiment(*simulated)) == 0
    assert sizes == [(8, False), (1, False)]
    (journal,) = journals(tmp_path)
    assert [len(event.records) for event in journal.rounds] == [9]  # ratios are inside a round


def test_memory_is_read_once_the_cut_is_kept_and_a_second_start_does_nothing(
    run, monkeypatch: pytest.MonkeyPatch
):
    workers = FakeWorkers()
    run(workers, experiment(spec(2, 4), rounds=3))
    assert [request.memory for request in workers.requests] == [True, False, False]
    assert [request.balance for request in workers.requests] == [None, (2, 2), (2, 2)]
    waits = spec(2, 4, model="timed", model_args={"L": 2}, fidelity="emulated")
    asleep = FakeWorkers()
    run(asleep, experiment(waits), accumulate=True)
    assert not any(request.memory for request in asleep.requests)
    monkeypatch.setattr(rehearsal, "build", None)  # no model is looked at
    assert run(workers, experiment(spec(2, 4), rounds=3)) == 0
    assert len(workers.requests) == 3


def test_a_baseline_that_accompanies_others_stays_done_also_where_it_fails_or_is_stopped(
    run, tmp_path: Path
):
    both = experiment(spec(1, 4), spec(2, 4))
    run(FakeWorkers(), both, "K=1,M=4")
    run(FakeWorkers({(1, 4): Status("failed", "lost")}), both, "K=2")
    assert status(tmp_path, 1, 4) == "done, 2"
    with pytest.raises(KeyboardInterrupt):  # in the second round
        run(FakeWorkers(stop_after=3), both, "K=2")
    assert status(tmp_path, 1, 4).startswith("done")
    assert status(tmp_path, 2, 4) == "done, 3"


def test_a_failure_is_shown_recorded_and_never_kept_as_a_result(run, tmp_path: Path):
    broken = FakeWorkers(fail={(2, 1): Status("failed", "stage 1: RuntimeError: no")})
    assert run(broken) == 1
    assert broken.asked.count((2, 1)) == 1  # later rounds go on without it
    assert status(tmp_path, 2, 1) == "failed(stage 1: RuntimeError: no), 0"
    assert status(tmp_path, 1, 1) == "done, 2"
    output = (tmp_path / "output.txt").read_text()
    assert "failed (stage 1: RuntimeError: no)" in output
    assert "logs/x" not in output
    assert "logs/x" in (tmp_path / cli.LOG).read_text()
    again = FakeWorkers()
    assert run(again) == 0
    # (2, 4) had no round together with its baseline (2, 1) either
    assert set(again.asked[:4]) == set(again.asked) == set(ALL)
    assert status(tmp_path, 2, 1) == "done, 2"


def rounds_of(results: Path) -> dict[str, list[str]]:
    return {run.id: [each.name for each in run.rounds] for run in load(results).runs}


def test_force_replaces_what_was_asked_for(run, tmp_path: Path):
    run(FakeWorkers())
    before = rounds_of(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(FakeWorkers(stop_after=2), force=True)
    assert rounds_of(tmp_path) == before, "nothing is lost"
    again = FakeWorkers()
    assert run(again, None, "K=2,M=4", force=True) == 0
    assert set(again.asked) == {(1, 4), (2, 1), (2, 4)}
    after = rounds_of(tmp_path)
    (mine,) = [run for run in after if run.startswith("transformer-K2-M4")]
    assert after[mine] == ["timed-0003", "timed-0004"]
    # the baselines keep their old rounds beside the fresh ones
    assert sum(map(len, after.values())) == sum(map(len, before.values())) + 4


def test_runs_of_another_version_or_torch_leave_an_accumulating_table(run, tmp_path: Path):
    both = spec(1, 4), spec(2, 4)
    run(FakeWorkers(), experiment(spec(1, 1)), accumulate=True)
    run(FakeWorkers(), experiment(*both), accumulate=True)
    assert len(all_runs(load(tmp_path))) == 3
    for here in (MACHINE, replace(MACHINE, torch="9.9")):
        run(FakeWorkers(), experiment(*both, version=2), accumulate=True, machine=here)
        rows = all_runs(load(tmp_path)).set_index("K")
        assert len(rows) == 2
        assert rows.loc[2, "speedup_vs_k1"] == pytest.approx(1.25 / 0.75)
    (journal,) = journals(tmp_path)
    assert len({run for event in journal.rounds for run in event.records}) == 7  # all stay


def test_what_verdicts_rest_on_is_measured_first(tmp_path: Path):
    """Before all else, without a clock and of the paper first; the other groups follow in order."""
    plans = [plan.make(find(name).build("laptop"), "laptop", MACHINE, tmp_path) for name in ORDER]
    parts = runner.in_parts(plans)
    names = [part.experiment.name for part in parts]
    first = {(of.experiment.name, g.name) for of in plans for g in of.experiment.groups if g.first}
    begin = {(part.experiment.name, run.group) for part in parts[:10] for run in part.outstanding}
    assert begin == first
    assert names[:2] + names[7:10] == ["breakdown", "figure2", "table1", "methods", "bubble"]
    assert names[10:] == [name for name in ORDER if name in names[10:]]


def test_the_page_follows_the_exhibits_each_of_which_prints_one_line(tmp_path: Path, monkeypatch):
    """Of every experiment a tiny one, of bubble two parts, of which the simulated one comes first.

    A page that fails, as the second, stops nothing.
    """
    made: list[str] = []
    seen: list[str] = []
    section_of, write = page.section_of, page.Page.write

    def counted(results: Results, name: str, plots: Path) -> page.Section:
        made.append(name)
        return section_of(results, name, plots)

    def watched(self: page.Page, results: Results) -> None:
        write(self, results)
        seen.append(self.path.read_text("utf-8"))
        if len(seen) == 2:
            raise ZeroDivisionError("no figure")

    monkeypatch.setattr(page, "section_of", counted)
    monkeypatch.setattr(page.Page, "write", watched)
    monkeypatch.setattr(runner, "workers_for", lambda *_: FakeWorkers())
    out, results, plots = io.StringIO(), tmp_path / "results", tmp_path / "plots"
    reporter = ProgressReporter(results / cli.LOG, Console(file=out, width=400))
    session = cli.Session(cli.RunOptions(results=results, wandb="disabled", plots=plots), reporter)
    plans = []
    for name in ORDER:
        of = experiment(spec(1, 1), *([spec(2, 1)] if name == "bubble" else []), rounds=1)
        paper = "" if name in ORDER[-6:] else "a table"
        simulated = spec(2, 2, fidelity="simulated", profile="v100")
        early = [Group(name="early", runs=(simulated,), first=name == "bubble")]
        of = of.model_copy(update={"name": name, "paper": paper, "minutes": {"smoke": 1.0}})
        if name in ("bubble", ORDER[-1]):
            of = of.model_copy(update={"groups": (*of.groups, *early)})
        plans.append(plan.make(of, "smoke", MACHINE, results))
    assert session.run(lambda: plans) == 0
    session.say_where()

    still = [re.findall(r"Not measured yet: (.+?)\.<", html) for html in seen]
    later = [name for name in ORDER if name != "bubble"]
    left = [", ".join(later[done:]) for done in range(len(later))]
    assert still == [*([names] for names in [*left[:4], *left[3:]]), [], []]
    assert made.count("consistency") == 2, "what has not changed is not made again"
    printed, address = out.getvalue().splitlines(), plots / "report.html"
    answers = [
        line for line in printed if re.fullmatch(r"\w+ \(\d+ s\): (\d) of \1 runs are done", line)
    ]
    assert [line.split()[0] for line in answers] == [*ORDER]
    first, early, *others = [line for line in printed[1:] if line not in answers]
    assert first == f"page: {address}, renewed after each exhibit; log: {reporter.log_file}"
    assert early == "bubble (1 s): 1 of 1 runs are done; its other runs follow"
    assert others == [
        "warning: the page is not renewed: ZeroDivisionError: no figure",
        f"passed: 20 of 20 runs are done; page: {address}",
    ]
    assert "no figure" in reporter.log_file.read_text("utf-8")

    at_once = page.write(load(results), tmp_path / "again").plots
    files, others = ({at.name: at.read_bytes() for at in of.iterdir()} for of in (plots, at_once))
    assert files == others
    assert {"bubble_sweep.svg", "report.html", "runs.csv"} <= {*files}
