"""A W&B workspace for the mirrored results: a section for each exhibit, with its panels.

`sections` says what is shown, by the names that the mirror logs (`wandb_summary`).
`workspace` makes W&B's own object of it. wandb and wandb_workspaces are imported only there.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from repro.harness.frame import all_runs, select
from repro.harness.results import Results
from repro.harness.schema import LearnRound
from repro.harness.wandb_summary import GENERAL, PAGE, Report, name_part, places, runs_table

if TYPE_CHECKING:
    import wandb_workspaces.workspaces as ws
    from wandb_workspaces.reports.v2.interface import PanelTypes

NAME = "GPipe, reproduced"
# Columns of the table of all runs that are drawn against K and against M, and their names.
_DRAWN = {
    "speedup_vs_k1": "speedup over K=1",
    "speedup_vs_k2m1": "throughput over K=2, M=1",
    "bubble_idle_over_total": "bubble (idle share of K x step)",
    "peak_gib_max": "peak memory of the fullest stage (GiB)",
}
_MOST_RUNS = 100  # that a panel looks at; W&B's own limit is 10


class Panel(NamedTuple):
    """One panel; "bars" has one bar for each experiment, "chart" a point for each line of a table.

    `metrics` are the names under which the mirror logs what is shown. `axes` has the metric of a
    line plot, and the columns of both axes of a chart.
    """

    kind: Literal["line plot", "chart", "bars", "number", "table", "pictures", "page"]
    title: str
    metrics: tuple[str, ...]
    axes: tuple[str, ...] = ()


class Section(NamedTuple):
    """The panels of one exhibit, or of one experiment that the paper does not have."""

    title: str
    panels: tuple[Panel, ...]


def sections(results: Results, report: Report) -> list[Section]:
    """What the workspace shows: what holds, the paper's exhibits, other experiments, trainings."""

    def key(name: str) -> tuple[bool, bool, str]:
        place = results.listings[name].paper or results.listings[name].neurips
        return not place, not place.startswith("Table"), place or name

    made = [Section("What holds", tuple(_overview(report)))]
    for name in sorted({place.experiment for place in places(results)}, key=key):
        about = results.listings[name]
        title = f"{about.paper or name}: {about.title or name}"
        made.append(Section(title, tuple(_panels(results, report, name))))
    made.append(Section("Trainings", tuple(_trainings(results))))
    return [section for section in made if section.panels]


def _overview(report: Report) -> Iterator[Panel]:
    """The page, the verdicts, and how many claims have which."""
    if report.page.is_file():
        yield Panel("page", "The report", (PAGE,))
    for name, path in report.tables().items():
        if path.stem in GENERAL:
            yield Panel("table", path.stem, (name,))
    for name in report.claims():
        yield Panel("number", f"claims: {name.partition('/')[2].replace('_', ' ')}", (name,))


def _panels(results: Results, report: Report, experiment: str) -> Iterator[Panel]:
    """Charts against K and M, pictures, and the main table of an experiment."""
    rows = select(all_runs(results), experiment=experiment, status="done", task="train")
    for column, title in _DRAWN.items():
        for axis in ("K", "M"):
            if rows.loc[rows[column].notna(), axis].nunique() > 1:
                table = (runs_table(experiment),)
                yield Panel("chart", f"{title} against {axis}", table, (axis, column))
    if figures := report.figures(experiment):
        yield Panel("pictures", "figures", tuple(figures))
    tables = report.tables(experiment)
    main = {name: path for name, path in tables.items() if path.stem == experiment}
    for name, path in (main or tables).items():
        yield Panel("table", path.stem, (name,))
    yield Panel("table", "all runs", (runs_table(experiment),))


def _trainings(results: Results) -> Iterator[Panel]:
    """The loss of trainings, those of `repro train` too, and what they reach on test data."""
    records = [run.rounds[-1].record for run in results.runs if run.done]
    trained = [record for record in records if isinstance(record, LearnRound)]
    if trained:
        yield Panel("line plot", "loss against steps", ("train/loss",), ("step",))
    for name in dict.fromkeys(name for record in trained for name in record.metrics):
        if ":" not in name:  # of single languages ("bleu toy:alfa") there are too many
            yield Panel("bars", f"{name} on test data", (f"test/{name_part(name)}",))


def workspace(shown: Sequence[Section], entity: str, project: str) -> "ws.Workspace":
    """W&B's object for these sections, not yet sent; needs the package wandb_workspaces."""
    import wandb_workspaces.workspaces as ws
    from wandb_workspaces import expr

    made = [
        ws.Section(
            name=section.title,
            panels=[_panel_of(panel) for panel in section.panels],
            is_open=section is shown[0],
        )
        for section in shown
    ]
    return ws.Workspace(
        entity=entity,
        project=project,
        name=NAME,
        sections=made,
        settings=ws.WorkspaceSettings(max_runs=_MOST_RUNS),
        runset_settings=ws.RunsetSettings(groupby=[expr.Metric("Group")]),
    )


def _panel_of(panel: Panel) -> "PanelTypes":
    import wandb_workspaces.reports.v2 as wr

    title, metrics = panel.title, list[Any](panel.metrics)
    runs: dict[str, Any] = {"max_runs_to_show": _MOST_RUNS}
    match panel.kind:
        case "line plot":
            (x,) = panel.axes
            return wr.LinePlot(title=title, x=x, y=metrics, title_x=x, **runs)
        case "chart":
            return wr.CustomChart(
                query={"summaryTable": {"tableKey": metrics[0]}},
                chart_name="wandb/scatter/v0",
                chart_fields=dict(zip("xy", panel.axes, strict=True)),
                chart_strings={"title": title},
            )
        case "bars":
            grouped: dict[str, Any] = {"groupby": "Group", "groupby_aggfunc": "mean"}
            return wr.BarPlot(title=title, metrics=metrics, **grouped, **runs)
        case "number":
            return wr.ScalarChart(title=title, metric=metrics[0])
        case "table":
            return wr.WeavePanelSummaryTable(table_name=metrics[0])
        case _:
            return wr.MediaBrowser(title=title, media_keys=metrics, num_columns=2)
