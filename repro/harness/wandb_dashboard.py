"""A W&B workspace for the mirrored results: a section for each exhibit, with its panels.

`sections` says what is shown, by the names that the mirror logs (`wandb_curves`, `wandb_summary`).
`workspace` makes W&B's own object of it. wandb and wandb_workspaces are imported only there.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from repro.harness.results import Results
from repro.harness.schema import LearnRound
from repro.harness.wandb_curves import (
    AXES,
    QUANTITIES,
    Curve,
    curves,
    largest_name,
    places,
)
from repro.harness.wandb_mirror import name_part
from repro.harness.wandb_summary import GENERAL, PAGE, Report, runs_table

if TYPE_CHECKING:
    import wandb_workspaces.workspaces as ws
    from wandb_workspaces.reports.v2.interface import PanelTypes

NAME = "GPipe, reproduced"
_MOST_LINES = 12  # of runs, in one plot
_MOST_RUNS = 100  # that a panel looks at; W&B's own limit is 10


@dataclass(frozen=True)
class Panel:
    """One panel.

    Attributes:
        kind: of panel; "bars" has one bar for each experiment, "page" is the report.
        title: above the panel.
        metrics: names under which the mirror logs what is shown.
        x: of a line plot, the metric of its horizontal axis.
    """

    kind: Literal["line plot", "bars", "number", "table", "pictures", "page"]
    title: str
    metrics: tuple[str, ...]
    x: str = ""


@dataclass(frozen=True)
class Section:
    """The panels of one exhibit, or of one experiment that the paper does not have."""

    title: str
    panels: tuple[Panel, ...]


def sections(results: Results, report: Report) -> list[Section]:
    """What the workspace shows: what holds, the paper's exhibits, other experiments, trainings."""
    made = [Section("What holds", tuple(_overview(report)))]
    for experiment in _ordered(results):
        panels = tuple(_panels(results, report, experiment))
        made.append(Section(_title(results, experiment), panels))
    made.append(Section("Trainings", tuple(_trainings(results))))
    return [section for section in made if section.panels]


def outline(shown: Sequence[Section]) -> list[str]:
    """The sections and panels as lines of text."""
    lines = []
    for section in shown:
        lines += ["", section.title]
        for panel in section.panels:
            number = len(panel.metrics)
            lines_of = f"{number} line{'s' * (number > 1)}"
            count = f" ({lines_of})" if panel.kind == "line plot" else ""
            lines.append(f"  {panel.kind:10} {panel.title}{count}")
    return lines


def workspace(shown: Sequence[Section], entity: str, project: str) -> "ws.Workspace":
    """W&B's object for these sections, not yet sent.

    Raises:
        ImportError: wandb_workspaces is not installed.
    """
    import wandb_workspaces.workspaces as ws
    from wandb_workspaces import expr

    return ws.Workspace(
        entity=entity,
        project=project,
        name=NAME,
        sections=[
            ws.Section(
                name=section.title,
                panels=[_panel_of(panel) for panel in section.panels],
                is_open=number == 0,
            )
            for number, section in enumerate(shown)
        ],
        settings=ws.WorkspaceSettings(max_runs=_MOST_RUNS),
        runset_settings=ws.RunsetSettings(groupby=[expr.Metric("Group")]),
    )


def _ordered(results: Results) -> list[str]:
    """The recorded experiments: tables of the paper, its figures, then all others by name."""

    def key(name: str) -> tuple[bool, bool, str]:
        place = results.listings[name].paper or results.listings[name].neurips
        return not place, not place.startswith("Table"), place or name

    return sorted({place.experiment for place in places(results)}, key=key)


def _title(results: Results, experiment: str) -> str:
    """`Table 2: Throughput of a pipeline`."""
    about = results.listings[experiment]
    return f"{about.paper or experiment}: {about.title or experiment}"


def _overview(report: Report) -> Iterator[Panel]:
    """The page, the verdicts, and how many claims have which."""
    if report.page.is_file():
        yield Panel("page", "The report", (PAGE,))
    tables = {path.stem: name for name, path in report.tables().items()}
    for title in GENERAL:
        if title in tables:
            yield Panel("table", title, (tables[title],))
    for name in report.claims():
        yield Panel("number", f"claims: {name.partition('/')[2].replace('_', ' ')}", (name,))


def _panels(results: Results, report: Report, experiment: str) -> Iterator[Panel]:
    """Plots against K and M, largest speedups, pictures, and the main table of an experiment."""
    lines = [
        line
        for place in places(results)
        if place.experiment == experiment
        for line in curves(results, place)
    ]
    yield from _plots(lines)
    speedups = {largest_name(line): line for line in lines if line.quantity == "speedup"}
    for name, line in speedups.items():
        yield Panel("number", f"largest speedup: {line.model}, {line.fidelity}", (name,))
    if figures := report.figures(experiment):
        yield Panel("pictures", "figures", tuple(figures))
    tables = report.tables(experiment)
    main = {name: path for name, path in tables.items() if path.stem == experiment}
    for name, path in (main or tables).items():
        yield Panel("table", path.stem, (name,))
    yield Panel("table", "all runs", (runs_table(experiment),))


def _plots(lines: Sequence[Curve]) -> Iterator[Panel]:
    """A line plot for each quantity, axis and model."""
    for quantity, (_, title) in QUANTITIES.items():
        for axis in AXES:
            alike = [line for line in lines if (line.quantity, line.axis) == (quantity, axis)]
            for model in dict.fromkeys(line.model for line in alike if line.model):
                drawn = _main([line for line in alike if line.model == model])
                fixed = {line.fixed for line in drawn}
                # The formula has no model.
                drawn += [line for line in alike if not line.model and line.fixed in fixed]
                metrics = dict.fromkeys(line.metric for line in drawn)
                yield Panel("line plot", f"{title} against {axis}, {model}", tuple(metrics), axis)


def _main(lines: Sequence[Curve]) -> list[Curve]:
    """The lines of a plot. Where they are too many, those of the first group of each fidelity.

    The first group is what an experiment is about; later ones vary it.
    """
    if len({line.metric for line in lines}) <= _MOST_LINES:
        return list(lines)
    first: dict[str, str] = {}
    for line in lines:
        first.setdefault(line.fidelity, line.group)
    return [line for line in lines if line.group == first[line.fidelity]]


def _trainings(results: Results) -> Iterator[Panel]:
    """The loss of trainings, those of `repro train` too, and what they reach on test data."""
    records = [run.rounds[-1].record for run in results.runs if run.done]
    trained = [record for record in records if isinstance(record, LearnRound)]
    if not trained:
        return
    yield Panel("line plot", "loss against steps", ("train/loss",), "step")
    names = dict.fromkeys(name for record in trained for name in record.metrics)
    # Of single languages ("bleu toy:alfa") there are too many.
    for name in (name for name in names if ":" not in name):
        yield Panel("bars", f"{name} on test data", (f"test/{name_part(name)}",))


def _panel_of(panel: Panel) -> "PanelTypes":
    """W&B's object for a panel."""
    import wandb_workspaces.reports.v2 as wr

    metrics: list[Any] = list(panel.metrics)
    if panel.kind == "line plot":
        return wr.LinePlot(
            title=panel.title,
            x=panel.x,
            y=metrics,
            title_x=panel.x,
            range_y=(0, None),
            max_runs_to_show=_MOST_RUNS,
        )
    if panel.kind == "bars":
        return wr.BarPlot(
            title=panel.title,
            metrics=metrics,
            groupby="Group",
            groupby_aggfunc="mean",
            max_runs_to_show=_MOST_RUNS,
        )
    if panel.kind == "number":
        return wr.ScalarChart(title=panel.title, metric=metrics[0])
    if panel.kind == "table":
        return wr.WeavePanelSummaryTable(table_name=metrics[0])
    return wr.MediaBrowser(title=panel.title, media_keys=metrics, num_columns=2)


def metrics_of(shown: Iterable[Section]) -> set[str]:
    """Every name that the panels want from the mirror, axes included."""
    panels = [panel for section in shown for panel in section.panels]
    return {name for panel in panels for name in (*panel.metrics, panel.x) if name}
