"""Table 1 in the report: cells from real counts of the Transformer, reasons, laws, figures."""

from pathlib import Path

import pytest
from recorded import MACHINE

from experiments.table1 import accountings, laws
from experiments.table1 import report as table1
from experiments.table1.accountings import READINGS, Reading, Summary
from experiments.table1.laws import Point
from experiments.table1.runs import ACCOUNTINGS, COUNTED_M, OPTIMIZER, M
from repro.harness import catalog
from repro.harness.job import Measured
from repro.harness.journal import Journal, Status
from repro.harness.results import Results, load
from repro.harness.schema import FitRound, Tried
from repro.harness.spec import Experiment, RunSpec
from repro.harness.tasks import fit
from repro.paper.theory import MEMORY_LAWS
from repro.report import figures
from repro.report.table import Table

SPAN = ("2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z")


def wanted(run: RunSpec) -> bool:
    """What is counted quickly: the Transformer's given sizes, and its searches on few stages."""
    if run.model != "transformer" or run.fidelity != "counted":
        return False
    return "L" in run.model_args or run.K in (1, 8)


def measured(run: RunSpec) -> FitRound:
    """What a search by training records, made from what is counted."""
    counted = fit.counted(run.model_copy(update={"fidelity": "counted"}), "cpu")
    largest, above = counted.fit.largest, counted.fit.next
    assert largest
    assert above
    tried = []
    for cut in (largest, above):
        totals = [stage.total for stage in cut.stages]
        tried.append(
            Tried(
                args=cut.args,
                parameters=cut.parameters,
                status="done" if cut is largest else "oom",
                reason="stage 1: too much",
                peak_bytes=totals if cut is largest else None,
                counted_bytes=totals,
                allocator_bytes=None,
            )
        )
    fitted = counted.fit.model_copy(update={"tried": tried, "counted": largest})
    return counted.model_copy(update={"fit": fitted})


@pytest.fixture(scope="module")
def plan() -> Experiment:
    return catalog.find("table1").build("laptop")


@pytest.fixture(scope="module")
def folder(plan: Experiment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("results")
    folder = Journal.of(path, MACHINE, "laptop", plan.name)
    runs = {
        run.run_id(plan.version, MACHINE.identity): (g.name, run)
        for g in plan.groups
        for run in g.runs
    }
    folder.plan(plan, MACHINE, accumulate=False)
    for group in plan.groups:
        lines = {
            name: Measured(fit.counted(run, "cpu"), None)
            for name, (g, run) in runs.items()
            if g == group.name and wanted(run)
        }
        if group.name == "transformer-here":
            lines = {
                name: Measured(measured(run), None)
                for name, (g, run) in runs.items()
                if g == group.name
            }
        if lines:
            folder.commit(group.name, lines, MACHINE, SPAN)
        folder.set_status(dict.fromkeys(lines, Status("done")))
    return path


@pytest.fixture(scope="module")
def results(folder: Path) -> Results:
    return load(folder)


@pytest.fixture(scope="module")
def tables(results: Results) -> dict[str, Table]:
    return {table.name: table for table in table1.tables(results)}


def row(table: Table, model: str, column: str) -> dict:
    return next(
        line
        for line in table.shown.to_dict("records")
        if list(line.values())[:2] == [model, column]
    )


def test_gradients_are_what_tells_the_accountings_apart(results: Results):
    lines = accountings.accounting_lines(results)
    assert [line.column for line in lines] == [f"Pipeline-{K}" for K in (1, 8, 32, 128)]
    for line, L in zip(lines, (13, 103, 415, 1663), strict=True):
        gradients = 4 * (131_104_000 + 50_358_272 * L) / 2**30
        for m in COUNTED_M:
            one, two = (line.counted[Reading(optimizer, m)] for optimizer in ACCOUNTINGS)
            assert two - one == pytest.approx(gradients, rel=1e-4)


def test_the_favoured_reading_is_computed_and_is_what_everything_is_counted_with(
    results: Results, tables: dict[str, Table]
):
    summary = accountings.summary(accountings.accounting_lines(results), "transformer")
    assert summary.favoured == Reading(OPTIMIZER, M)
    note = tables["table1_accountings"].note
    assert "Transformer, two slots, M=32 is favoured by its median difference of 4.5%" in note
    assert "M is not identified, since the nearest is M=16 with one slot and M=32 with two" in note


def test_dropout_of_attention_changes_which_reading_is_nearest(tables: dict[str, Table]):
    line = row(tables["table1_accountings"], "Transformer", accountings.MEDIAN_WITH_DROPOUT)
    medians = {reading: line[reading.name, "difference"].removesuffix("%") for reading in READINGS}
    assert min(READINGS, key=lambda reading: float(medians[reading])) == Reading("rmsprop", 32)
    assert float(medians[Reading("rmsprop", 32)]) < 10 < float(medians[Reading(OPTIMIZER, 32)])


def made_up(differences: dict[Reading, float]) -> Summary:
    counted = {reading: 10 * (1 + difference) for reading, difference in differences.items()}
    line = accountings.Line("amoebanet-d", "Pipeline-1", 10.0, counted, {})
    return accountings.summary([line], "amoebanet-d")


def test_a_verdict_follows_its_numbers():
    one16, one32, two16, two32 = READINGS
    far = made_up({one16: 0.2, one32: -0.4, two16: 0.3, two32: -0.11})
    assert far.favoured is None
    verdict = accountings.verdict([far])
    assert verdict == "No reading is within 10% of every printed cell of AmoebaNet-D."
    same_M = made_up({one16: 0.01, one32: -0.4, two16: 0.3, two32: -0.5})
    assert same_M.favoured == one16
    assert "one slot, M=16 is favoured by its median difference of 1.0%" in accountings.verdict(
        [same_M]
    )
    assert "identified" not in accountings.verdict([same_M]), "both accountings are nearest at 16"
    assert accountings.verdict([made_up({one16: 0.1})]) == "Not every reading has been counted."


def test_a_law_that_holds_is_told_from_one_that_does_not():
    plain, short, kept = MEMORY_LAWS
    grid = [
        Point(4, 16, 64, 0),
        *(Point(4, M, 64, 0) for M in (1, 4, 64)),
        Point(1, 16, 64, 0),
        Point(4, 16, 128, 0),
    ]
    some = [Point(p.K, p.M, p.N, int(1e6 * (3 * p.N + 500 * p.N / (p.K * p.M)))) for p in grid]
    assert max(map(abs, laws.errors(plain, some).values())) < 1e-6
    assert laws.constants(plain, some) == pytest.approx([3e6, 500e6], rel=1e-6)
    assert max(map(abs, laws.errors(short, some).values())) > 0.3
    assert max(map(abs, laws.errors(kept, some).values())) > 0.3
    assert [p.M for p in laws.axis(some, "M")] == [16, 1, 4, 64]


def test_figures_are_drawn_from_what_there_is(results: Results, tmp_path: Path):
    drawn = figures.draw_all(results, tmp_path)
    assert {one.stem.name for one in drawn} == {"table1_kinds", "table1_laws"}
    assert all(one.stem.with_suffix(".png").stat().st_size > 20_000 for one in drawn)
