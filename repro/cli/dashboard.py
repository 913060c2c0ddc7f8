"""`repro dashboard`: a workspace in Weights & Biases with a section for each exhibit."""

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from repro.cli.answers import tell
from repro.cli.options import parse
from repro.harness import wandb_mirror, wandb_summary
from repro.harness.results import load_recorded
from repro.harness.wandb_dashboard import title_of, workspace
from repro.io.untrusted import message, refuse_linked_files

if TYPE_CHECKING:
    import wandb_workspaces.workspaces as ws


@dataclasses.dataclass(frozen=True)
class DashboardOptions:
    """Show a W&B workspace for the results, with panels by exhibit; --push makes it."""

    results: Path = Path("results")
    """where measurements were recorded"""
    plots: Path = Path("plots")
    """where the report is, whose tables and pictures are shown"""
    project: Annotated[str, tyro.conf.arg(metavar="NAME")] = ""
    """the W&B project to which the runs were sent; by default WANDB_PROJECT or gpipe-repro"""
    entity: Annotated[str, tyro.conf.arg(metavar="NAME")] = ""
    """the W&B user or team that has the project; by default WANDB_ENTITY or yourself"""
    log: tyro.conf.FlagCreatePairsOff[bool] = False
    """also mirror these results and the report now, offline, without measuring anything"""
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """print what would be sent to W&B, as JSON"""
    push: tyro.conf.FlagCreatePairsOff[bool] = False
    """make the workspace in W&B; needs `wandb login`"""


def main(arguments: list[str]) -> int:
    options = parse(DashboardOptions, arguments, "repro dashboard")
    refuse_linked_files(options.plots)
    results = load_recorded(options.results)
    places = wandb_summary.places(results)
    experiments = tuple(dict.fromkeys(place.experiment for place in places))
    report = wandb_summary.Report(options.plots, experiments)
    if not report.page.is_file():
        print(
            f"no report in {options.plots}, so no verdicts, tables and pictures are shown; first "
            f"`repro report --results {options.results} --plots {options.plots}`",
            file=sys.stderr,
        )
    settings = wandb_mirror.settings()
    project = options.project or settings.project or wandb_mirror.PROJECT
    made = workspace(results, report, options.entity or settings.entity or "", project)
    beside = sys.stderr if options.json else sys.stdout  # so that what is printed stays JSON
    if options.json:
        print(made._to_model().spec.model_dump_json(by_alias=True, exclude_none=True))
    else:
        panels = [
            {"section": section.name, "panel": type(panel).__name__, "shows": title_of(panel)}
            for section in made.sections
            for panel in section.panels
        ]
        tell({"workspace": made.name, "project": made.project, "panels": panels})
    folder = options.results / "wandb"
    if options.log:
        for place in places:
            tags = (results.listings[place.experiment].paper, place.scale, place.machine)
            wandb_summary.log_experiment("offline", results, place, options.results, tags)
        wandb_summary.log_report("offline", options.plots, experiments, options.results)
        print(f"\nmirrored offline, in {folder}", file=beside)
    if options.push:
        print(f"workspace: {_push(made)}", file=beside)
    elif not options.json:
        where = f"where the runs have to be: `.venv/bin/wandb sync {folder}`"
        print(f"\nnothing was sent; --push makes this workspace in W&B, {where}")
    return 0


def _push(made: "ws.Workspace") -> str:
    if not wandb_mirror.has_key():
        server = wandb_mirror.settings().base_url
        raise ValueError(f"--push: no API key for {server}; run `.venv/bin/wandb login` first")
    import wandb

    try:
        made.entity = made.entity or wandb.Api().default_entity or ""
        made.save()
        return made.url
    except Exception as error:  # of W&B's client, whose errors have no common class
        raise ValueError(
            f"--push: no workspace was made for --entity {made.entity or '(yourself)'} --project "
            f"{made.project}: {message(error).rstrip('.')}; check both names and the network, and "
            "that runs were sent there with `.venv/bin/wandb sync`"
        ) from None
