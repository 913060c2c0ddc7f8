"""Table 1 in the report: cells from real counts of the Transformer, reasons, laws, figures."""

from pathlib import Path

import pytest
from recorded import MACHINE

from experiments.table1 import laws
from experiments.table1 import report as table1
from experiments.table1.laws import Point
from repro.harness import catalog
from repro.harness.job import Measured
from repro.harness.record import Folder
from repro.harness.results import Results, load
from repro.harness.schema import FitRound, Tried
from repro.harness.spec import Experiment, RunSpec
from repro.harness.tasks import fit
from repro.paper.theory import MEMORY_LAWS
from repro.report import figures
from repro.report.table import NOT_RUN, Table

SPAN = ("2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z")


def wanted(run: RunSpec) -> bool:
    """What is counted within a second or so."""
    return run.model == "transformer" and run.fidelity == "counted" and run.K in (1, 2, 4, 8, 128)


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
    folder = Folder.of(path, MACHINE, "laptop", plan.name)
    runs = {
        run.run_id(plan.version, MACHINE.identity): (g.name, run)
        for g in plan.groups
        for run in g.runs
    }
    folder.write_specs(plan, runs, MACHINE.identity, accumulate=False)
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
            folder.commit_round(group.name, lines, MACHINE, SPAN)
        for name in lines:
            folder.set_status(name, "done", rounds=1)
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


def test_the_columns_stand_side_by_side(tables: dict[str, Table]):
    one = row(tables["table1"], "Transformer", "Pipeline-1")
    assert one["largest", "quoted"] == "L=13"
    assert one["largest", "counted"] == "L=13"
    assert one["parameters", "counted"] == "785.8M"
    assert one["times Naive-1's", "quoted"] == "2.7x (text)"
    most = row(tables["table1"], "Transformer", "Pipeline-128")
    assert most["times Naive-1's", "quoted"] == "298x (text)"
    assert most["times Pipeline-1's", "quoted"] == "106.8x"
    naive = row(tables["table1"], "Transformer", "Naive-1")
    assert naive["largest", "counted"] == "none (L=1: 132%)"
    assert row(tables["table1"], "AmoebaNet-D", "Pipeline-8")["largest", "counted"] == NOT_RUN
    small = row(tables["table1"], "Transformer", "Pipeline-4")
    assert (small["largest", "quoted"], small["largest", "counted"]) == ("-", "-")
    assert small["times Naive-1's", "measured, small"] == "21.4x"


def test_memory_has_12_bytes_and_the_swapped_cells_put_right(tables: dict[str, Table]):
    one = row(tables["table1_memory"], "Transformer", "Pipeline-1")
    assert one["12 bytes each", "counted"] == "8.78 GiB"
    naive = row(tables["table1_memory"], "Transformer", "Naive-1")
    assert (naive["12 bytes each", "quoted"], naive["peak activations", "quoted"]) == (
        "11.7",
        "3.15",
    )
    ratio = "activations / parameters"
    assert (naive[ratio, "quoted"], naive[ratio, "quoted, corrected"]) == ("0.27", "3.71")
    others = [
        line
        for line in tables["table1_memory"].shown.to_dict("records")
        if line["", "column"] != "Naive-1"
    ]
    assert all(line[ratio, "quoted"] == line[ratio, "quoted, corrected"] for line in others)


def test_every_difference_has_its_reason(tables: dict[str, Table]):
    def why(column: str) -> str:
        return row(tables["table1"], "Transformer", column)["largest", "why"]

    assert why("Pipeline-1") == "as printed"
    assert why("Pipeline-8") == "printed size leaves room (91%)"
    assert why("Naive-1") == "printed size does not fit (230%)"
    assert why("Pipeline-4") == "-", "the paper has no such column"
    memory = row(tables["table1_memory"], "Transformer", "Naive-1")
    assert memory["quoted activations", "are those of"] == "N=11"
    assert memory["quoted bytes", "of a parameter"] == "12.0"
    eight = row(tables["table1_memory"], "Transformer", "Pipeline-8")
    assert eight["quoted activations", "are those of"] == "M=17"


def test_what_is_not_printed_is_varied(tables: dict[str, Table]):
    lines = {line["setting"]: line for line in tables["table1_varied"].shown.to_dict("records")}
    sizes = [lines[f"N=32, M={M}"]["K=1"] for M in (8, 16, 32)]
    assert sizes == ["L=8: 534.0M", "L=13: 785.8M", "L=17: 987.2M"]
    assert lines["N=32, M=16, fused attention"]["K=1"] == "L=17: 987.2M"
    assert lines["N=32, Naive-1"]["K=8"] == "-"


def test_what_trained_here_stands_beside_what_was_counted(tables: dict[str, Table]):
    line = row(tables["table1_here"], "Transformer", "Pipeline-2")
    assert (line["counted"], line["measured"], line["measured over counted"]) == (
        "L=17",
        "L=17",
        "1.000",
    )
    assert line["next size"] == "L=18: stage 1"


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


def test_laws_are_judged_in_words(tables: dict[str, Table]):
    lines = {line["law"]: line for line in tables["table1_laws"].shown.to_dict("records")}
    assert lines["N + (L/K)(N/M)"]["verdict"] == "holds over M and K and N"
    assert "N" in lines["(L/K)(N/M)"]["verdict"].partition(";")[0]
    gradients = lines["more micro-batches need more gradient memory"]["verdict"]
    assert gradients == "does not hold"


def test_figures_are_drawn_from_what_there_is(results: Results, tmp_path: Path):
    drawn = figures.draw_all(results, tmp_path)
    assert {one.stem.name for one in drawn} == {"table1_kinds", "table1_laws", "table1_largest"}
    assert all(one.stem.with_suffix(".png").stat().st_size > 20_000 for one in drawn)


def test_nothing_is_said_of_what_was_not_run(nothing: Results):
    assert table1.tables(nothing) == []
