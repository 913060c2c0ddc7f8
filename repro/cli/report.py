"""`repro report`: tables, figures and the page; recorded runs; what W&B shows of them."""

import dataclasses
from collections import Counter
from dataclasses import replace
from math import isnan
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from repro.cli.answers import print_answer, same
from repro.cli.options import parse
from repro.harness import closing, progress
from repro.harness.results import GIB, Results, Round, Run, find_run, load_beside, load_recorded
from repro.harness.spec import assigned
from repro.harness.terminal import show
from repro.harness.wandb import PROJECT, log_experiment, settings, workspace
from repro.io.untrusted import did_you_mean, message, refuse_links, short

if TYPE_CHECKING:
    import wandb_workspaces.workspaces as ws

    from repro.report.page import Page

REFERENCE = Path("results/reference"), Path("plots/reference")
_SCREEN = 40  # runs that are listed without being asked for by name
_WIDTH = 72  # of the timeline of a step
# Questions that are answered one at a time.
_QUESTIONS = ("runs", "run", "wandb", "reference", "with")


@dataclasses.dataclass(frozen=True)
class ReportOptions:
    """Write tables, figures and report.html from the recorded results, or print runs."""

    results: Path = Path("results")
    """where measurements were recorded"""
    plots: Path = Path("plots")
    """where tables, figures and the page go"""
    reference: tyro.conf.FlagCreatePairsOff[bool] = False
    """from results/reference into plots/reference, both committed"""
    others: Annotated[
        tuple[Path, ...], tyro.conf.arg(name="with", metavar="FOLDER"), tyro.conf.UseAppendAction
    ] = ()
    """also show the results in this folder, which another machine recorded; repeatable"""
    runs: Annotated[tuple[str, ...] | None, tyro.conf.arg(metavar="[EXPERIMENT ...]")] = None
    """only list the recorded runs, of these experiments or of all"""
    run: Annotated[str | None, tyro.conf.arg(metavar="RUN")] = None
    """only show one run, by its id or a unique part of it: settings, rounds, its median step"""
    wandb: tyro.conf.FlagCreatePairsOff[bool] = False
    """only show the workspace that the results have in Weights & Biases"""
    push: tyro.conf.FlagCreatePairsOff[bool] = False
    """with --wandb: make it in WANDB_PROJECT of WANDB_ENTITY, after `wandb login`"""
    log: tyro.conf.FlagCreatePairsOff[bool] = False
    """with --wandb: copy the tables of results that `repro run` did not copy, offline"""


def main(arguments: list[str]) -> int:
    options = parse(ReportOptions, arguments, "repro report")
    fields = dataclasses.fields(options)
    given = {each.name for each in fields if getattr(options, each.name) != each.default}
    given |= {"with"} if options.others else set()
    questions = [f"--{name}" for name in _QUESTIONS if name in given]
    if len(questions) > 1:
        raise ValueError(f"{' and '.join(questions)}: each is a report of its own; give one")
    for name in (name for name in ("push", "log") if name in given and "wandb" not in given):
        raise ValueError(f"--{name}: an option of --wandb, which is not given")
    if options.run is not None:
        results, run = find_run(options.run, options.results)
        show_run(results, run)
    elif options.runs is not None:
        show_runs(_of(options.runs, load_recorded(options.results)), options)
    elif options.wandb:
        show_workspace(load_recorded(options.results), options)
    else:
        write(options)
    return 0


def write(options: ReportOptions) -> None:
    from repro.report import page  # matplotlib takes a second to load

    if options.others:
        results, lines = load_beside(options.results, options.others)
        print(f"wrote {page.write(results, options.plots).path}")
        print("\n".join(lines))
    elif options.reference:
        folder, plots = REFERENCE
        print(f"wrote {page.write(load_recorded(folder), plots).path}")
    else:
        written = page.write(load_recorded(options.results), options.plots)
        show_verdicts(written)
        print(f"open {written.path}")


def show_verdicts(page: "Page") -> None:
    """Print the paper's six questions with their verdicts, if anything can be compared."""
    if page.claims:
        from repro.report.first_screen import lines

        answers = lines(page.claims)
        print_answer({"the paper's questions": answers, "every claim": page.plots / "verdicts.md"})


def _of(names: tuple[str, ...], results: Results) -> Results:
    """The results of these experiments; of all where none is named."""
    known = results.by_experiment
    for name in (name for name in names if name not in known):
        raise ValueError(
            f"--runs {short(name, quote=False)}: recorded are {', '.join(known)}"
            f"{did_you_mean(name, known)}"
        )
    return replace(
        results, runs=[run for run in results.runs if run.experiment in (names or known)]
    )


def show_runs(results: Results, options: ReportOptions) -> None:
    """Print a line for each run; for each experiment if no name is given and the runs are many."""
    if options.runs or len(results.runs) <= _SCREEN:
        show(closing.table(results.runs, results))
        print("\n`repro report --run RUN` shows one with its median step")
    else:
        count = Counter(run.place for run in results.runs)
        done = Counter(run.place for run in results.runs if run.done)
        rows = [{**place._asdict(), "runs": count[place], "done": done[place]} for place in count]
        print_answer({"recorded": rows})
        print("\n`--runs EXPERIMENT` lists the runs of one")


def _timed(of: Run | Round) -> dict[str, float | None]:
    numbers = same(of, "step_s", "throughput", "idle_over_total")
    return {name: None if isnan(value) else value for name, value in numbers.items()}


def show_run(results: Results, run: Run) -> None:
    """Settings, numbers and rounds of a run, and the timeline of its median step."""
    rest = {n: v for n, v in run.spec.plain().items() if n not in ("model", "model_args")}
    rounds = [{"round": round_.name, **_timed(round_)} for round_ in run.rounds]
    fields: dict[str, Any] = {
        "run": run.id,
        "recorded": "/".join(run.place),
        "model": f"{run.model} {assigned(run.spec.model_args)}",
        "settings": short(assigned(rest), 500, quote=False),
        "differs in": run.differs_in or None,
        "device": run.device or None,
        "commit": run.commit or None,
        "status": run.status,
        **_timed(run),
        "peak_bytes": [GIB * peak for peak in run.peak_gib_per_stage] or None,
        "largest model": run.size or None,
        "on test data": assigned(run.newest.get("metrics", {})) or None,
        "rounds": rounds,
    }
    timeline = results.timeline(run)
    if timeline is not None:
        fields[f"median step: {progress.LEGEND}"] = progress.gantt(timeline, _WIDTH)
    print_answer(fields)


def show_workspace(results: Results, options: ReportOptions) -> None:
    """Print the panels of each section; with --log copy tables, with --push make the workspace."""
    folder = options.results / "wandb"
    if options.log:
        # W&B would report a folder that cannot be written once for each table.
        refuse_links(options.results, folder)
        folder.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=folder).close()
    user = settings(options.results)
    made = workspace(results, user.entity or "", user.project or PROJECT)
    sections = [
        {"section": name, "panels": ", ".join(panels)} for name, panels in panels_of(made).items()
    ]
    print_answer({"workspace": made.name, "project": made.project, "sections": sections})
    if options.log:
        for place in dict.fromkeys(run.place for run in results.runs if run.done):
            log_experiment("offline", results, place, options.results)
        print(f"\noffline copies are in {folder}")
    if options.push:
        print(f"\nworkspace: {_push(made)}")
    else:
        print(
            "\nnothing was sent; --push makes this workspace in W&B, where the runs have to be: "
            f"`.venv/bin/wandb sync {folder}`"
        )


def panels_of(made: "ws.Workspace") -> dict[str, list[str]]:
    """Section -> what its panels show."""

    def title(panel: Any) -> str:
        chart = getattr(panel, "chart_strings", {})
        return chart.get("title") or getattr(panel, "title", "") or panel.table_name

    return {section.name: [title(panel) for panel in section.panels] for section in made.sections}


def _push(made: "ws.Workspace") -> str:
    import wandb

    try:
        made.entity = made.entity or wandb.Api().default_entity or ""
        made.save()
        return made.url
    except Exception as error:  # of W&B's client, whose errors have no common class
        raise ValueError(
            f"--push: no workspace was made in {made.project} of {made.entity or 'yourself'}: "
            f"{message(error).rstrip('.')}; check WANDB_PROJECT, WANDB_ENTITY and the network, and "
            "that runs were sent there with `.venv/bin/wandb sync`"
        ) from None
