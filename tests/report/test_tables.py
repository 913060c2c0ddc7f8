"""Tables hold the right ratios, name baselines, keep fidelities apart, say why a cell is empty."""

import csv
import io
import re
from dataclasses import replace
from math import isnan, nan
from pathlib import Path

import pandas as pd
import pytest
from recorded import changed_runs, fill_with, record, timeline

from repro.gpipe.partition.layer_costs import LinkSpeed
from repro.gpipe.schedule.kinds import make_schedule
from repro.harness.job import Measured
from repro.harness.results import SETTINGS, Results, Run, load
from repro.harness.spec import Experiment, Group, RunSpec
from repro.report import figures, tables
from repro.report.compare import beside_paper, rows_of, settings, without_tiny
from repro.report.ratio import Ratio, ideal_over_k1, over_k1, over_k2m1
from repro.report.table import Cell, Heading, Table, csv_text, unguarded

PAPER = {"table1", "table2", "table3", "breakdown", "bubble"}


def row(results, K, M):
    return next(row for row in rows_of(results) if (row.K, row.M) == (K, M))


def test_ratios_are_taken_inside_rounds(results):
    ratio = over_k1(results, row(results, 2, 4))
    assert (ratio.value, ratio.low, ratio.high, ratio.rounds) == (pytest.approx(1.6),) * 3 + (5,)
    assert ratio.baseline == "K=1, M=4, N=32, re-materialization always"
    assert ratio.verdict == "faster"
    normalised = over_k2m1(results, row(results, 2, 4))
    assert normalised.value == pytest.approx(1.6)
    assert normalised.baseline == "K=2, M=1, N=32, re-materialization always"


def test_an_interval_over_1_shows_no_difference(results):
    ratio = over_k1(results, row(results, 2, 1))
    assert ratio.low < 1 < ratio.high
    assert ratio.verdict == "no difference shown"
    assert str(ratio).endswith("] ~")


def test_a_baseline_is_named_as_such_and_few_rounds_have_no_interval(results):
    assert str(over_k1(results, row(results, 1, 4))) == "1 (baseline)"
    assert str(Ratio(1.5, nan, nan, 4, "K=1")) == "1.50"
    assert Ratio(1.5, nan, nan, 4, "K=1").verdict == "too few rounds"
    assert "no interval below 5 rounds" in tables.points(results, "table2").note


def test_a_fidelity_never_shares_a_column(mixed):
    made = {table.name: table for table in tables.all_tables(mixed)}
    shown = made["table2"].shown.set_index(["model", "M"])
    assert shown.at[("Transformer", "4"), "K=4 measured"] == "skipped(needs 4 devices)"
    assert {"memory", "memory_emulated"} <= set(made)
    for name, table in made.items():
        if name.startswith("memory"):
            fidelity = "emulated" if name.endswith("_emulated") else "measured"
            assert set(table.shown["fidelity"]) == {fidelity}
            assert fidelity in table.title
            assert table.data is None or set(table.data["fidelity"]) == {fidelity}
    planned = [len(tables.points(mixed, "table2", name).shown) for name in ("measured", "emulated")]
    assert planned[0] == planned[1] + 2


def with_fused_attention(run: Run) -> Run:
    spec = run.spec.model_copy(update={"model_args": {"L": 4, "attention": "fused"}})
    rounds = []
    for round_ in run.rounds:
        record = round_.record.model_copy(update={"labels": {"attention": "fused"}})
        rounds.append(replace(round_, record=record))
    return replace(run, id=run.id + "f", spec=spec, rounds=tuple(rounds))


def test_rows_that_differ_in_attention_alone_are_told_apart(results):
    fused = changed_runs(results, with_fused_attention)
    both = replace(results, runs=[*results.runs, *fused.runs])
    for table in (tables.points(both, "table2"), tables.memory(both)):
        assert set(table.shown["setting"]) == {
            "laptop, L=4, N=32, remat always, attention plain",
            "laptop, L=4, attention=fused, N=32, remat always",
        }
        assert not table.shown.duplicated(["K", "M", "setting"]).any()


def test_what_differs_between_settings_is_named(results):
    def details(**fields):
        def change(run: Run) -> Run:
            if run.M != 4:
                return run
            return replace(run, spec=run.spec.model_copy(update=fields))

        runs = changed_runs(results, change)
        return {setting.details for setting in settings(runs, rows_of(runs))}

    usual = "laptop, L=4, N=32, remat always"
    assert details(lr=0.5) == {f"{usual}, lr {lr}, attention plain" for lr in (0.01, 0.5)}
    slow = LinkSpeed(bytes_per_second=10e6)
    assert details(link=slow) == {
        f"{usual}, link {link}, attention plain" for link in ("10 MB/s", "not throttled")
    }
    assert details(profile="tpu-v2") == {
        f"{usual}, attention plain",
        "L=4, N=32, device profile tpu-v2, remat always, attention plain",
    }
    assert details(balance=(2, 2)) == {
        f"{usual}, {cut}attention plain" for cut in ("", "balance given, ")
    }


def widths(results: Path) -> Results:
    """A sweep of three widths, two rounds each; its three runs differ by their hash alone."""

    def made(spec: RunSpec, number: int) -> Measured:
        walked = timeline(spec.K, spec.M, forward=0.01 * (number + 1))
        schedule = make_schedule("gpipe", spec.K, spec.M)
        extra = {"loss": [1.0], "peak_bytes": [2**30, 2**29], "labels": {"data": "made up"}}
        return Measured(record(walked, schedule, **extra), walked)

    runs = tuple(
        RunSpec(
            model="import:mine:mlp",
            model_args={"width": width, "act": "gelu", "sizes": [1, 2]},
            K=2,
            M=4,
            N=8,
        )
        for width in (64, 256, 512)
    )
    plan = Experiment(name="sweep", title="", question="", groups=(Group(name="mlp", runs=runs),))
    fill_with(results, plan, made, rounds=2)
    return load(results)


def test_runs_csv_holds_numbers_that_pandas_reads(tmp_path):
    path = tables.runs(widths(tmp_path)).write(tmp_path)[0]
    frame = pd.read_csv(path)
    assert frame["model_args.width"].tolist() == [64, 256, 512]
    assert frame["differs_in"].tolist() == ["width=64", "width=256", "width=512"]
    assert set(frame["model_args.act"]) == {"gelu"}
    assert set(frame["labels.data"]) == {"made up"}
    assert set(frame["lr"]) == {0.01}
    assert set(frame["optimizer"]) == {"sgd"}
    assert frame["trace"].tolist() == [True] * 3
    assert frame["peak_gib_max"].tolist() == [1.0] * 3
    assert [[float(part) for part in cell.split(";")] for cell in frame["peak_gib_per_stage"]] == [
        [1.0, 0.5]
    ] * 3
    assert (set(frame["balance"]), set(frame["model_args.sizes"])) == ({"1;1"}, {"1;2"})
    assert all(isnan(value) for value in frame["speedup_vs_k1_ci_low"]), "there is no K=1"
    assert not re.search(r"[\[({]|None|nan", path.read_text(encoding="utf-8")), (
        "no cell is a Python value"
    )


def test_rounds_csv_has_a_line_for_each_run_and_round(tmp_path):
    frame = pd.read_csv(io.StringIO(csv_text(tables.rounds(widths(tmp_path)).to_dict("list"))))
    assert len(frame) == 3 * 2
    assert frame.groupby("run")["round"].apply(list).tolist() == [["mlp-0001", "mlp-0002"]] * 3
    steps = {name: list(some["step_s"]) for name, some in frame.groupby("round")}
    assert steps["mlp-0002"] == pytest.approx([2 * step for step in steps["mlp-0001"]])
    assert frame["throughput"].tolist() == pytest.approx([8 / step for step in frame["step_s"]])
    assert {"K", "M", "N", "fidelity", "commit", "breakdown.recompute", "setup_s"} <= set(
        frame.columns
    )
    assert not set(frame.columns) & {"checks", "fit", "modelled", "calibration"}


def test_the_reference_has_no_two_runs_that_differ_by_their_hash_alone():
    """Whatever a run was asked to be stands in runs.csv, a link's speed in its labels."""
    frame = pd.read_csv(Path(__file__).parents[2] / "plots/reference/runs.csv")
    asked = [
        *(name for name in frame.columns if name.startswith("model_args.")),
        *(
            "machine",
            "scale",
            "experiment",
            "model",
            "K",
            "M",
            "N",
            "D",
            "schedule",
            "remat",
            "optimizer",
            "lr",
        ),
        *("fidelity", "library", "cut_by", "labels.link", "training", *SETTINGS),
    ]
    assert len(frame.drop_duplicates(asked)) == len(frame)


@pytest.fixture(scope="module")
def reference() -> Results:
    return load(Path(__file__).parents[2] / "results/reference")


def at_smoke(results: Results) -> Results:
    """The same as if it had been recorded at scale smoke; no timeline is found under that name."""
    return changed_runs(results, lambda run: replace(run, place=run.place._replace(scale="smoke")))


def headings(table: Table) -> str:
    """Title and all column names, of what is shown and of the csv file."""
    frames = [table.shown] + ([] if table.data is None else [table.data])
    return " ".join([table.title, *(str(name) for frame in frames for name in frame.columns)])


PAPERS = r"quoted|NeurIPS|verdict|\bgap\b|negligible|\bpie\b"


@pytest.mark.slow
def test_at_smoke_no_table_holds_anything_against_the_paper(reference):
    """Of the committed results, which fill every table that there is."""
    made = [table for table in tables.all_tables(at_smoke(reference)) if table.experiment in PAPER]
    assert {table.experiment for table in made} == PAPER
    for table in made:
        # These verdicts are about our own baselines and bottlenecks.
        text = re.sub(r"over K=\d(, M=1)?: verdict", "", headings(table))
        if not table.name.endswith("_why"):
            assert not re.search(PAPERS, text), table.name


@pytest.mark.slow
def test_at_smoke_no_figure_shows_the_paper_s_numbers(reference, tmp_path, monkeypatch):
    labels: dict[str, list[str]] = {}

    def save(figure, stem):
        in_axes = [axes.get_legend() for axes in figure.axes if axes.get_legend()]
        texts = [text for legend in (*figure.legends, *in_axes) for text in legend.get_texts()]
        texts += [text for axes in figure.axes for text in axes.get_yticklabels()]
        labels[stem.name] = [text.get_text() for text in texts]

    monkeypatch.setattr(figures, "save", save)
    drawn = {one.stem.name: one for one in figures.draw_all(at_smoke(reference), tmp_path)}
    assert {"breakdown_parts", "bubble_curves"} <= set(drawn)
    for name, one in drawn.items():
        assert "quoted" not in " ".join([*labels[name], one.caption]).lower(), name
    assert not {"table1_kinds", "table2_bars"} & set(drawn)


def test_where_there_is_more_than_smoke_only_that_is_held_against_the_paper(results, nothing):
    tiny = at_smoke(results)
    both = replace(results, runs=[*results.runs, *tiny.runs])
    assert set(without_tiny(both).rows["scale"]) == {"laptop"}
    assert set(without_tiny(tiny).rows["scale"]) == {"smoke"}
    statuses = {"laptop": "planned", "smoke": "done"}
    planned = changed_runs(both, lambda run: replace(run, status=statuses[run.scale]))
    assert set(without_tiny(planned).rows["scale"]) == {"laptop", "smoke"}
    assert [beside_paper(some, "table2") for some in (results, both, tiny, planned, nothing)] == [
        True,
        True,
    ] + [False] * 3
    made = {table.name: table for table in tables.all_tables(both)}
    assert set(made["runs"].shown["scale"]) == {"laptop", "smoke"}


def test_an_experiment_of_that_name_without_its_models_has_no_table_2(tmp_path):
    run = RunSpec(model="import:mine:mlp", K=1, M=2, N=8)
    plan = Experiment(
        name="table2", title="", question="", groups=(Group(name="mlp", runs=(run,)),)
    )
    fill_with(tmp_path, plan, lambda spec, _: None)
    names = {table.name for table in tables.all_tables(load(tmp_path))}
    assert "table2" not in names


def test_ranks_with_several_stages_have_no_ideal_of_one(results):
    assert isnan(ideal_over_k1(2, 4, "interleaved-1f1b", "never"))


def table_of(*texts: str, name: str = "odd", title: str = "", note: str = "") -> Table:
    """A table of one row."""
    headings = [Heading(column, column) for column in "wxyz"[: len(texts)]]
    return Table(name, title, note, headings, [[Cell(text, text) for text in texts]])


def test_files_escape_their_own_special_characters(tmp_path):
    texts = ["a|b_c", "50 % & {x}", "1.50 [1.40, 1.60]", "not run"]
    table = table_of(*texts, title="T_1 | <x>", note="5 % ~")
    csv_path, md_path, tex_path = table.write(tmp_path)
    with csv_path.open(encoding="utf-8") as file:
        assert list(csv.reader(file))[1] == texts
    assert r"| a\|b\_c | 50 % & {x} | 1.50 [1.40, 1.60] |" in md_path.read_text()
    tex = tex_path.read_text()
    assert r"a|b\_c & 50 \% \& \{x\} & 1.50 [1.40, 1.60]" in tex
    assert r"\caption{T\_1 | <x>. 5 \% \textasciitilde{}}" in tex
    html = table.html()
    assert "50 % &amp; {x}" in html
    assert "<b>1.50</b> <small>[1.40, 1.60]</small>" in html
    assert "<b>+1.5</b> <small>[-2.0, +3.0]</small>" in table_of("+1.5 [-2.0, +3.0]").html()
    assert "<b>4.0e-01</b> <small>[2.9e-01, 5" in table_of("4.0e-01 [2.9e-01, 5.8e-01]").html()
    assert '<td class="missing">not run</td>' in html
    assert "<td>-6 %</td>" in table_of("-6 %").html(), "a number, not a missing one"


def test_no_cell_of_a_csv_file_is_a_formula():
    """A spreadsheet computes a text that begins so; numbers stay numbers, also as texts."""
    formulas = ["=1+1", "+cmd|' /C calc'!A0", "-2+3+cmd()", "@SUM(A1)", "\t=1", "\n=1", "+37% at K"]
    others = [-3.5, 1e-3, "-3.5", "+1e-3", "-", "-7.4, 0.822", "K=2", "'-x", None]
    text = csv_text({"=name": [*formulas, *others, ["=1", 2], "a\r=1"]})
    head, *lines = [line[0] for line in csv.reader(io.StringIO(text, newline=""))]
    assert head == "'=name"
    assert lines[:7] == [f"'{formula}" for formula in formulas]
    assert [unguarded(line) for line in lines[:7]] == formulas
    assert lines[7:] == [*("" if cell is None else str(cell) for cell in others), "'=1;2", "a\n=1"]


def test_a_link_in_the_place_of_a_table_is_replaced(tmp_path: Path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "x.csv").symlink_to(tmp_path / "mine")
    column = Heading("a", "a")
    Table("x", "X", "", (column,), ((Cell("1", "1"),),)).write(tmp_path)
    assert (tmp_path / "x.csv").read_text() == "a\n1\n"
    assert (tmp_path / "mine").read_text() == "mine"
