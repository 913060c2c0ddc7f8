"""A W&B workspace for the mirrored results: a section for each exhibit, with its panels.

Panels show what the mirror logs (`wandb_summary`), by its names there.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import wandb_workspaces.reports.v2 as wr
import wandb_workspaces.workspaces as ws
from wandb_workspaces import expr

from repro.harness.frame import all_runs, select
from repro.harness.results import Results
from repro.harness.schema import LearnRound
from repro.harness.wandb_summary import GENERAL, PAGE, Report, name_part, places, runs_table

if TYPE_CHECKING:
    from wandb_workspaces.reports.v2.interface import PanelTypes

NAME = "GPipe, reproduced"
# Columns of the table of all runs that are drawn, each against what it depends on most, and their
# names. The first ones have room.
_DRAWN = [
    ("speedup_vs_plain", "K", "speedup over plain training"),
    ("speedup_vs_k1", "K", "speedup over K=1"),
    ("idle_over_total", "M", "idle share of K x step"),
    ("speedup_vs_k2m1", "M", "throughput over K=2, M=1"),
    ("peak_gib_max", "K", "peak memory of the fullest stage (GiB)"),
]
_MOST_RUNS = 100  # that a panel looks at; W&B's own limit is 10
_MOST_PANELS = 4  # of a section


def workspace(results: Results, report: Report, entity: str, project: str) -> ws.Workspace:
    """What holds, the paper's exhibits, other experiments, trainings; not yet sent."""

    def key(name: str) -> tuple[bool, bool, str]:
        place = results.listings[name].paper or results.listings[name].neurips
        return not place, not place.startswith("Table"), place or name

    made = {"What holds": [*_overview(report)]}
    for name in sorted({place.experiment for place in places(results)}, key=key):
        about = results.listings[name]
        title = f"{about.paper or name}: {about.title or name}"
        made[title] = _panels(results, report, name)
    made["Trainings"] = [*_trainings(results)][:_MOST_PANELS]
    shown = [ws.Section(name=title, panels=panels) for title, panels in made.items() if panels]
    for section in shown[:1]:
        section.is_open = True
    return ws.Workspace(
        entity=entity,
        project=project,
        name=NAME,
        sections=shown,
        settings=ws.WorkspaceSettings(max_runs=_MOST_RUNS),
        runset_settings=ws.RunsetSettings(groupby=[expr.Metric("Group")]),
    )


def title_of(panel: Any) -> str:
    if isinstance(panel, wr.CustomChart):
        return panel.chart_strings["title"]
    return getattr(panel, "title", "") or panel.table_name


def _overview(report: Report) -> "Iterator[PanelTypes]":
    if report.page.is_file():
        yield wr.MediaBrowser(title="The report", media_keys=[PAGE], num_columns=2)
    for name in report.tables(*GENERAL):
        yield wr.WeavePanelSummaryTable(table_name=name)


def _panels(results: Results, report: Report, experiment: str) -> "list[PanelTypes]":
    """Charts, as many as there is room for beside the figures, the main table and the runs."""
    rows = select(all_runs(results), experiment=experiment, status="done", task="train")
    charts: list[PanelTypes] = [
        wr.CustomChart(
            query={"summaryTable": {"tableKey": runs_table(experiment)}},
            chart_name="wandb/scatter/v0",
            chart_fields={"x": axis, "y": column},
            chart_strings={"title": f"{title} against {axis}"},
        )
        for column, axis, title in _DRAWN
        if rows.loc[rows[column].notna(), axis].nunique() > 1
    ]
    names = [*report.tables(experiment), runs_table(experiment)]
    others: list[PanelTypes] = [wr.WeavePanelSummaryTable(table_name=name) for name in names]
    if figures := report.figures(experiment):
        others.insert(0, wr.MediaBrowser(title="figures", media_keys=[*figures], num_columns=2))
    return [*charts[: _MOST_PANELS - len(others)], *others]


def _trainings(results: Results) -> "Iterator[PanelTypes]":
    records = [run.rounds[-1].record for run in results.runs if run.done]
    trained = [record for record in records if isinstance(record, LearnRound)]
    runs: dict[str, Any] = {"max_runs_to_show": _MOST_RUNS}
    if trained:
        loss: Any = ["train/loss"]
        yield wr.LinePlot(title="loss against steps", y=loss, **runs)
    for name in dict.fromkeys(name for record in trained for name in record.metrics):
        # Single languages ("bleu toy:alfa") are too many, and the loss has a chart already.
        if ":" not in name and name != "loss":
            metrics: Any = [f"test/{name_part(name)}"]
            grouped: dict[str, Any] = {"groupby": "Group", "groupby_aggfunc": "mean"} | runs
            yield wr.BarPlot(title=f"{name} on test data", metrics=metrics, **grouped)
