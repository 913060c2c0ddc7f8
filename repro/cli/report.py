"""`repro report`: tables, figures and the page; recorded runs; a workspace in W&B."""

import dataclasses
from collections import Counter
from dataclasses import replace
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from repro.cli.answers import print_answer, same
from repro.cli.options import parse
from repro.harness import progress, run_table
from repro.harness.results import GIB, Results, Round, Run, find_run, load_beside, load_recorded
from repro.harness.spec import assigned
from repro.harness.terminal import show
from repro.harness.text import EMPTY, percent, ranged, seconds, size
from repro.harness.wandb import PROJECT, settings, workspace
from repro.io.untrusted import did_you_mean, message, short

if TYPE_CHECKING:
    from repro.report.page import Page

REFERENCE = Path("results/reference"), Path("plots/reference")
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
    json: tyro.conf.FlagCreatePairsOff[bool] = False
    """print the runs of --runs with all their settings as one JSON object"""
    wandb: tyro.conf.FlagCreatePairsOff[bool] = False
    """only make a workspace in Weights & Biases that shows the runs which were sent there"""


def main(arguments: list[str]) -> int:
    options = parse(ReportOptions, arguments, "repro report")
    fields = dataclasses.fields(options)
    given = {each.name for each in fields if getattr(options, each.name) != each.default}
    given |= {"with"} if options.others else set()
    questions = [f"--{name}" for name in _QUESTIONS if name in given]
    if len(questions) > 1:
        raise ValueError(f"{' and '.join(questions)}: each is a report of its own; give one")
    if options.json and options.runs is None:
        raise ValueError("--json: prints the runs of --runs; give that too")
    if options.run is not None:
        results, run = find_run(options.run, options.results)
        show_run(results, run)
    elif options.runs is not None:
        show_runs(_of(options.runs, load_recorded(options.results)), options)
    elif options.wandb:
        print(f"workspace: {_push(load_recorded(options.results), options.results)}")
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
    """Print a line for each run of the named experiments, or for each experiment if none is."""
    if options.json:
        runs = [
            {"run": run.id, "recorded": "/".join(run.place), "status": str(run.status)}
            | run.spec.plain()
            | same(run, "step_s", "throughput", "idle_over_total")
            | {"peak_bytes": [round(GIB * peak) for peak in run.peak_gib_per_stage]}
            for run in results.runs
        ]
        print_answer({}, {"runs": runs}, as_json=True)
    elif options.runs:
        show(run_table.recorded(results.runs, results))
        print("\n`repro report --run RUN` shows one with its median step")
    else:
        count = Counter(run.place for run in results.runs)
        done = Counter(run.place for run in results.runs if run.done)
        rows = [
            {**place._asdict(), "runs": str(runs), "done": str(done[place])}
            for place, runs in count.items()
        ]
        print_answer({"recorded": rows})
        print("\n`--runs EXPERIMENT` lists the runs of one")


def show_run(results: Results, run: Run) -> None:
    """Settings, numbers and rounds of a run, and the timeline of its median step."""
    rest = {n: v for n, v in run.spec.plain().items() if n not in ("model", "model_args")}
    rounds = [{"round": each.name, **_timed(each)} for each in run.rounds]
    shown: dict[str, Any] = {
        "run": run.id,
        "recorded": "/".join(run.place),
        "model": f"{run.model} {assigned(run.spec.model_args)}",
        "settings": short(assigned(rest), 500, quote=False),
        "differs in": run.differs_in or None,
        "device": run.device or None,
        "commit": run.commit or None,
        "status": run.status,
        **_timed(run),
        "throughput": ranged(run.throughput, unit=run.unit) if run.step_s > 0 else None,
        "peak": size(GIB * run.peak_gib_max) if run.peak_gib_per_stage else None,
        "largest model": run.size or None,
        "on test data": assigned(run.newest.get("metrics", {})) or None,
        "rounds": rounds,
    }
    timeline = results.timeline(run)
    if timeline is not None:
        shown[f"median step: {progress.LEGEND}"] = progress.gantt(timeline, _WIDTH)
    print_answer(shown)


def _timed(of: Run | Round) -> dict[str, str]:
    step, idle = of.step_s, of.idle_over_total
    return {
        "step": EMPTY if isnan(step) else seconds(step),
        "idle": EMPTY if isnan(idle) else percent(idle),
    }


def _push(results: Results, folder: Path) -> str:
    """Make the workspace of these results in W&B; its address."""
    import wandb

    user = settings(folder)
    made = workspace(results, user.entity or "", user.project or PROJECT)
    try:
        made.entity = made.entity or wandb.Api().default_entity or ""
        made.save()
        return made.url
    except Exception as error:  # of W&B's client, whose errors have no common class
        raise ValueError(
            f"--wandb: no workspace was made in {made.project} of {made.entity or 'yourself'}: "
            f"{message(error).rstrip('.')}; check WANDB_PROJECT, WANDB_ENTITY and the network, and "
            f"that runs were sent there with `.venv/bin/wandb sync {folder / 'wandb'}`"
        ) from None
