"""`repro plan`: what would be measured; and what `repro run` shares with it."""

import dataclasses
import sys
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Generic, NamedTuple, TypeVar

import tyro
from annotated_types import Interval

from repro.cli import doctor
from repro.cli.options import parse
from repro.harness import catalog, machine, run_table
from repro.harness.catalog import Source
from repro.harness.plan import Plan, make
from repro.harness.progress import summary
from repro.harness.spec import Scale
from repro.harness.terminal import show

P = TypeVar("P", bound="PlanOptions")
_NAMES = (
    "[NAME ...] is an experiment (`repro list`), several, or a path to a .py file of your own, "
    "which is code and is run; none means all."
)


@dataclasses.dataclass(frozen=True)
class PlanOptions:
    """Show which runs would be measured, are recorded, or cannot run on this machine."""

    scale: Scale | None = None
    """how large everything is; by default node where two GPUs are usable, else laptop"""
    only: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """only runs with all these fields, such as K=2,M=4, and their baselines; repeats add runs"""
    rounds: Annotated[int | None, Interval(ge=1, le=10**6)] = None
    """rounds of each group, instead of the experiment's own number"""
    results: Path = Path("results")
    """where measurements are recorded"""
    force: tyro.conf.FlagCreatePairsOff[bool] = False
    """measure again what is done"""


class Request(NamedTuple, Generic[P]):
    """What the user asks for: options, the scale, and experiments."""

    options: P
    scale: Scale
    chosen: list[Source]

    def plans(self) -> list[Plan]:
        """What is left to measure of each experiment on this machine."""
        options, devices = self.options, machine.detect(self.scale)
        return [
            make(
                each.build(self.scale),
                self.scale,
                devices,
                options.results,
                options.only,
                options.rounds,
                force=options.force,
                accumulate=each.accumulate,
                command=each.command,
            )
            for each in self.chosen
        ]


def choose(kind: type[P], verb: str, arguments: list[str]) -> Request[P]:
    """The options, and the experiments that are named before them; prints the scale and why.

    A single experiment brings its own parameters as options.
    """
    names = [*takewhile(lambda word: not word.startswith("-"), arguments)]
    sources = [catalog.find(name) for name in names]
    single = sources[0] if len(sources) == 1 else None
    description = f"{kind.__doc__}\n\n{single.about if single else _NAMES}"
    extra = single.flags() if single else []
    prog = " ".join(["repro", verb, *(names or ["[NAME ...]"])])
    options = parse(kind, arguments[len(names) :], prog, description, extra)
    scale, why = machine.default_scale()
    why = f"because {why} (--scale chooses another)"
    if options.scale is not None:
        scale, why = options.scale, "as asked for"
    # Of all experiments, only those that have minutes at this scale: a sweep has none.
    known = [] if sources else [catalog.find(name) for name in catalog.names()]
    sources += [source for source in known if source.build(scale).minutes.get(scale)]
    values = {name: getattr(options, name) for name, _, _ in extra}
    chosen = [each.given(values) for each in sources]
    print(f"scale: {scale}, {why}")
    # Without this warning, stages would compute on the CPU and nobody would know why.
    if trouble := doctor.trouble_here():
        print(f"WARNING: {trouble}", file=sys.stderr)
    return Request(options, scale, chosen)


def main(arguments: list[str]) -> int:
    from rich.text import Text

    plans = choose(PlanOptions, "plan", arguments).plans()
    # Models that a user chose are checked. An experiment of the project with its own parameters is
    # planned without importing torch.
    known = catalog.names()
    unchecked = [plan for plan in plans if plan.command not in known or plan.accumulate]
    if unchecked:
        from repro.harness.rehearsal import check_plans

        check_plans(unchecked)
    for plan in plans:
        of = plan.experiment
        if len(plans) > 1:
            show([Text(f"{of.name}: {summary([plan])}")])
            continue
        title = Text(f"\n{of.name}: {of.title}\n{of.question}\n", style="bold")
        show([title, *run_table.planned(plan), summary([plan])])
    if len(plans) > 1:
        show([f"in all: {summary(plans)}", "`repro plan NAME` lists the runs of one"])
    return 0
