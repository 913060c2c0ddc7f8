"""The `repro` command: list, plan, run, report, why, fit, simulate, calibrate, doctor.

Listing imports no torch, nor does planning an experiment of the project. A user's mistake is one line on stderr and
exit status 2; a run that failed gives 1; 130 is Ctrl-C, 143 SIGTERM; 0 says that all that was asked for is done or
skipped.
"""

import dataclasses
import shlex
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import tyro

from repro.cli import calibrate, fit, simulate, why
from repro.cli.options import mistake, parse, parse_with
from repro.harness.mistakes import near
from repro.harness.spec import SCALES, Experiment, Scale
from repro.harness.warned import Warned
from repro.io import signals

P = TypeVar("P", bound="PlanOptions")
REFERENCE_RESULTS, REFERENCE_PLOTS = Path("results/reference"), Path("plots/reference")
_NAMES = (
    "[NAME ...] is an experiment (`repro list`), several, or a path to a .py file of your own, which is code and is "
    "run; none means all."
)


@dataclasses.dataclass(frozen=True)
class PlanOptions:
    """What would be measured here, what is done already and what this machine cannot do."""

    scale: Scale | None = None
    """sizes of everything; by default node where two GPUs are usable, else laptop"""
    only: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """only the runs with these fields, e.g. K=2,M=4 (all of them); again for other runs. Baselines are added"""
    rounds: int | None = None
    """how often each group is measured, instead of the experiment's own number"""
    results: Path = Path("results")
    """where measurements are recorded"""
    reference: tyro.conf.FlagCreatePairsOff[bool] = False
    """record into results/reference, which is committed"""
    force: tyro.conf.FlagCreatePairsOff[bool] = False
    """measure again what is done"""
    spec: Path | None = None
    """measure a recorded run again, with its baselines: the path of its spec.json, or of the same as .yaml"""
    trust: tyro.conf.FlagCreatePairsOff[bool] = False
    """run the code that --spec names: needed where its model is import:package.module:function"""

    @property
    def folder(self) -> Path:
        """Where measurements are recorded."""
        return REFERENCE_RESULTS if self.reference else self.results


@dataclasses.dataclass(frozen=True)
class RunOptions(PlanOptions):
    """Measure what is not done yet, record it, mirror it to W&B. Started again, it goes on where it stopped."""

    wandb: Literal["offline", "online", "disabled"] = "offline"
    """Weights & Biases; results never depend on it"""
    yes: tyro.conf.FlagCreatePairsOff[bool] = False
    """yes, measure at scale paper"""
    allow_nonfinite: tyro.conf.FlagCreatePairsOff[bool] = False
    """record runs whose loss or gradients are inf or nan; else they fail, and the rest goes on"""


@dataclasses.dataclass(frozen=True)
class ListOptions:
    """Each experiment with the paper's numbering (v5 and NeurIPS), what it needs and how long it takes."""


@dataclasses.dataclass(frozen=True)
class ReportOptions:
    """Write tables, figures and report.html from the results alone."""

    results: Path = Path("results")
    """where measurements were recorded"""
    plots: Path = Path("plots")
    """where tables, figures and the page go"""
    reference: tyro.conf.FlagCreatePairsOff[bool] = False
    """from results/reference into plots/reference, both committed, with the README's animation"""


@dataclasses.dataclass(frozen=True)
class DoctorOptions:
    """What this machine has and what can be measured on it."""

    results: Path = Path("results")
    """where measurements would be recorded"""
    check: tyro.conf.FlagCreatePairsOff[bool] = False
    """run small pipelines for half a minute: messages, gradients, a stage that fails, memory, the engine's overhead"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    signals.heed()
    warned = Warned()
    warnings.showwarning = warned.show
    try:
        try:
            return _dispatch(given)
        finally:
            warned.finish()
    except KeyboardInterrupt:
        pass
    except Exception as error:
        if not signals.heard():  # else this may be what an import made of it
            if not (isinstance(error, ValueError | OSError) and (told := mistake(error))):
                raise
            print(f"error: {told}", file=sys.stderr)
            return 2
    command = shlex.join(["repro", *given])
    print(f"interrupted: finished rounds are kept; `{command}` goes on from there", file=sys.stderr)
    return signals.exit_status()


def _dispatch(given: list[str]) -> int:
    verbs: dict[str, tuple[type, Callable[[list[str]], int]]] = {
        "list": (ListOptions, _list),
        "plan": (PlanOptions, _plan),
        "run": (RunOptions, _run),
        "report": (ReportOptions, _report),
        "why": (why.WhyOptions, why.main),
        "fit": (fit.FitOptions, fit.main),
        "simulate": (simulate.SimulateOptions, simulate.main),
        "calibrate": (calibrate.CalibrateOptions, calibrate.main),
        "doctor": (DoctorOptions, _doctor),
    }
    if not given or given[0] in ("-h", "--help"):
        print("usage: repro VERB ...\n\nGPipe (arXiv:1811.06965), reproduced.\n")
        for verb, (options, _) in verbs.items():
            print(f"  repro {verb:10}{(options.__doc__ or '').partition(chr(10))[0]}")
        print("\n`repro VERB --help` shows a verb's options, `repro run NAME --help` an experiment's as well.")
        return 0 if given else 2
    if given[0] not in verbs:
        raise ValueError(f"verb = '{given[0]}': allowed are {', '.join(verbs)}{near(given[0], verbs)}")
    return verbs[given[0]][1](given[1:])


def _list(arguments: list[str]) -> int:
    parse(ListOptions, arguments, "repro list")
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from repro.harness import catalog

    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    for column in ("name", "v5", "NeurIPS", *SCALES, "needs"):
        table.add_column(column, justify="right" if column in SCALES else "left", no_wrap=column != "needs")
    for name in catalog.names():
        built = [catalog.find(name).build(scale) for scale in SCALES]
        minutes = [f"{e.minutes.get(s, 0):g}'" if s in e.minutes else "-" for s, e in zip(SCALES, built, strict=True)]
        about = built[0]
        table.add_row(name, about.paper or "-", about.neurips or "-", *minutes, about.needs)
    Console(highlight=False).print(table)
    print("\n9' are 9 minutes. `repro plan NAME` shows an experiment's runs, `repro run NAME` measures them.")
    return 0


def _plan(arguments: list[str]) -> int:
    from rich.console import Console

    from repro.harness import catalog
    from repro.harness.progress import plan_table, summary
    from repro.harness.runner import check

    options, chosen = _chosen(PlanOptions, "plan", arguments)
    console = Console(highlight=False, markup=False)
    _say_scale(options)
    plans = _plans(options, chosen)
    # Experiments that come with the project, without parameters of the user's, need no torch to be planned.
    known = catalog.names()
    check([plan for plan in plans if plan.command not in known or plan.accumulate])
    for plan in plans:
        console.print(f"\n{plan.experiment.name}: {plan.experiment.title}\n{plan.experiment.question}\n", style="bold")
        console.print(plan_table(plan))
        console.print("\n".join([summary(plan), *plan.notes]), soft_wrap=True)
    return 0


def _run(arguments: list[str]) -> int:
    from repro.harness.machine import torchrun_rank

    if torchrun_rank() is None:
        return _measure(arguments)
    from repro.harness import pools, workers

    team = pools.torchrun()
    if team.rank:  # rank 0 plans and records
        team.serve(workers.work)
        return 0
    try:
        return _measure(arguments)
    finally:
        team.dismiss()


def _measure(arguments: list[str]) -> int:
    from repro.harness.plan import price
    from repro.harness.progress import Story
    from repro.harness.runner import Session
    from repro.report.gantt import picture

    options, chosen = _chosen(RunOptions, "run", arguments)
    _say_scale(options)
    if _scale(options)[0] == "paper" and not options.yes:
        raise ValueError(price(_plans(options, chosen)))
    command = shlex.join(["repro", "run", *arguments])
    session = Session(options.folder, options.wandb, Story(), picture, command, options.allow_nonfinite)
    code = session.execute(partial(_plans, options, chosen))
    report, page = f"repro report --results {options.folder}", "plots/report.html"
    if options.reference:
        report, page = "repro report --reference", str(REFERENCE_PLOTS / "report.html")
    session.story.say(f"\nresults: {options.folder}; `{report}` puts all tables and figures into {page}")
    if session.address:
        session.story.say(f"W&B: {session.address}")
    if session.failed:
        session.story.say(f"failed: {', '.join(session.failed)}; the same command measures them again, and only them")
    return code


def _report(arguments: list[str]) -> int:
    options = parse(ReportOptions, arguments, "repro report")
    from repro.report import page, stamp

    if options.reference:
        print(f"wrote {page.animate(REFERENCE_RESULTS, REFERENCE_PLOTS)}")
        print(f"wrote {page.write(REFERENCE_RESULTS, REFERENCE_PLOTS)}")
        return 0
    page.check_folder(options.results)
    if stamp.is_current(options.results, options.plots):
        print(f"{options.plots / 'report.html'} is up to date")
    else:
        print(f"wrote {page.write(options.results, options.plots)}")
        stamp.put(options.results, options.plots)
    return 0


def _doctor(arguments: list[str]) -> int:
    options = parse(DoctorOptions, arguments, "repro doctor")
    from repro.cli.doctor import print_report

    status = print_report(options.results)
    if options.check:
        from repro.cli.doctor_check import print_checks

        status = max(status, print_checks())
    return status


class Chosen(NamedTuple):
    """An experiment to build at a scale, whether its results accumulate, and what a user types to get it."""

    build: Callable[[Scale], Experiment]
    accumulate: bool
    command: str = ""


def _chosen(kind: type[P], verb: str, arguments: list[str]) -> tuple[P, list[Chosen]]:
    """The options and the experiments named before them; a single one brings its own parameters as flags."""
    from repro.harness import catalog

    count = next((n for n, word in enumerate(arguments) if word.startswith("-")), len(arguments))
    names, rest = arguments[:count], arguments[count:]
    prog = " ".join(["repro", verb, *(names or ["[NAME ...]"])])
    sources = [catalog.find(name) for name in names]
    extra = sources[0].flags() if len(sources) == 1 else []
    about = f"{kind.__doc__}\n\n{sources[0].about}" if len(sources) == 1 else f"{kind.__doc__}\n\n{_NAMES}"
    options, own = parse_with(kind, extra, rest, prog, about)
    if options.spec is not None:
        if names:
            raise ValueError(
                f"--spec {options.spec} with experiment = '{names[0]}': allowed is one of the two; drop one"
            )
        command = shlex.join(["--spec", str(_place(options.spec))])
        source = catalog.replay(options.spec, trusted=options.trust)
        if source.notice:
            print(source.notice)
        return options, [Chosen(source.build, accumulate=True, command=command)]
    if len(sources) == 1:
        values = sources[0].values(own)
        build = partial(sources[0].build, **values)
        return options, [Chosen(build, bool(sources[0].parameters), sources[0].command(values))]
    everything = not names
    sources = sources or [catalog.find(name) for name in catalog.names()]
    scale = _scale(options)[0]
    return options, [
        Chosen(s.build, bool(s.parameters), s.command({}))
        for s in sources
        if not everything or s.build(scale).minutes.get(scale)
    ]


def _place(spec: Path) -> Path:
    """A recorded spec's path as others may read it: what is above the results folder is left out."""
    if not spec.is_absolute():
        return spec
    return Path(*spec.parts[-6:]) if len(spec.parts) > 7 else Path(spec.name)


def _plans(options: PlanOptions, chosen: list[Chosen]) -> list[Any]:
    from repro.harness import machine, plan

    scale = _scale(options)[0]
    here = machine.detect(scale)
    asked = (scale, here, options.folder, options.only, options.rounds)
    return [
        plan.make(c.build(scale), *asked, force=options.force, accumulate=c.accumulate, command=c.command)
        for c in chosen
    ]


def _scale(options: PlanOptions) -> tuple[Scale, str]:
    """The scale, and a line that says which and why."""
    from repro.harness import machine

    if options.scale is not None:
        return options.scale, f"scale: {options.scale}, as asked for"
    if options.spec is not None and (recorded := options.spec.resolve().parts[-4:-3]) and recorded[0] in SCALES:
        return recorded[0], f"scale: {recorded[0]}, that of the recorded run (--scale chooses another)"
    scale, why = machine.default_scale()
    return scale, f"scale: {scale}, because {why} (--scale chooses another)"


def _say_scale(options: PlanOptions) -> None:
    """Which scale and why; a GPU that torch cannot use is loud, since stages would silently compute on the CPU."""
    from repro.cli import doctor

    print(_scale(options)[1])
    if trouble := doctor.trouble_here():
        print(f"WARNING: {trouble}", file=sys.stderr)
