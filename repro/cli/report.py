"""`repro report`: tables, figures and the page; recorded runs; a workspace in W&B."""

import dataclasses
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from repro.cli.answers import print_answer
from repro.cli.options import parse
from repro.harness import run_table
from repro.harness.results import Results, load_recorded
from repro.harness.terminal import show
from repro.harness.wandb import PROJECT, settings, workspace
from repro.io.untrusted import did_you_mean, message, short

if TYPE_CHECKING:
    from repro.report.page import Page

REFERENCE = Path("results/reference"), Path("plots/reference")
# Questions that are answered one at a time.
_QUESTIONS = ("plots", "reference", "runs", "wandb")


@dataclasses.dataclass(frozen=True)
class ReportOptions:
    """Write tables, figures and report.html from the recorded results, or print runs."""

    results: Path = Path("results")
    """where measurements were recorded"""
    plots: Path = Path("plots")
    """where tables, figures and the page go"""
    reference: tyro.conf.FlagCreatePairsOff[bool] = False
    """from results/reference into plots/reference, both committed"""
    runs: Annotated[tuple[str, ...] | None, tyro.conf.arg(metavar="[EXPERIMENT ...]")] = None
    """only list the recorded runs, of these experiments or of all"""
    wandb: tyro.conf.FlagCreatePairsOff[bool] = False
    """only make a workspace in Weights & Biases that shows the runs which were sent there"""


def main(arguments: list[str]) -> int:
    options = parse(ReportOptions, arguments, "repro report")
    default = ReportOptions()
    asked = [name for name in _QUESTIONS if getattr(options, name) != getattr(default, name)]
    if len(asked) > 1:
        flags = " and ".join(f"--{name}" for name in asked)
        raise ValueError(f"{flags}: each is a report of its own; give one")
    if options.runs is not None:
        show_runs(load_recorded(options.results), options.runs)
    elif options.wandb:
        print(f"workspace: {_push(load_recorded(options.results), options.results)}")
    else:
        write(options)
    return 0


def write(options: ReportOptions) -> None:
    from repro.report import page  # matplotlib takes a second to load

    if options.reference:
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


def show_runs(results: Results, names: tuple[str, ...]) -> None:
    """Print a line for each run of the named experiments, or for each experiment if none is."""
    known = results.by_experiment
    for name in (name for name in names if name not in known):
        raise ValueError(
            f"--runs {short(name, quote=False)}: recorded are {', '.join(known)}"
            f"{did_you_mean(name, known)}"
        )
    if names:
        show(run_table.recorded([run for run in results.runs if run.experiment in names], results))
    else:
        count = Counter(run.place for run in results.runs)
        done = Counter(run.place for run in results.runs if run.done)
        rows = [
            {**place._asdict(), "runs": str(runs), "done": str(done[place])}
            for place, runs in count.items()
        ]
        print_answer({"recorded": rows})
        print("\n`--runs EXPERIMENT` lists the runs of one")


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
