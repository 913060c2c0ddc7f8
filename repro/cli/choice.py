"""What `repro plan` and `repro run` share: options, the experiments that are named, and their plans here."""

import dataclasses
import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

import tyro

from repro.cli import doctor
from repro.cli.options import parse_with
from repro.harness import catalog, machine
from repro.harness.pack import unpack
from repro.harness.plan import Plan, make
from repro.harness.spec import SCALES, Experiment, Scale

P = TypeVar("P", bound="PlanOptions")
REFERENCE_RESULTS, REFERENCE_PLOTS = Path("results/reference"), Path("plots/reference")
_NAMES = (
    "[NAME ...] is an experiment (`repro list`), several, or a path to a .py file of your own, "
    "which is code and is run; none means all."
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
        if self.reference:
            unpack(REFERENCE_RESULTS)
            return REFERENCE_RESULTS
        return self.results


class Chosen(NamedTuple):
    """An experiment to build at a scale, whether its results accumulate, and what a user types to get it."""

    build: Callable[[Scale], Experiment]
    accumulate: bool
    command: str = ""


def choose(kind: type[P], verb: str, arguments: list[str]) -> tuple[P, list[Chosen]]:
    """The options and the experiments named before them; a single one brings its own parameters as flags."""
    count = next((n for n, word in enumerate(arguments) if word.startswith("-")), len(arguments))
    names, rest = arguments[:count], arguments[count:]
    prog = " ".join(["repro", verb, *(names or ["[NAME ...]"])])
    sources = [catalog.find(name) for name in names]
    extra = sources[0].flags() if len(sources) == 1 else []
    about = (
        f"{kind.__doc__}\n\n{sources[0].about}"
        if len(sources) == 1
        else f"{kind.__doc__}\n\n{_NAMES}"
    )
    options, own = parse_with(kind, extra, rest, prog, about)
    if options.spec is not None:
        if names:
            raise ValueError(
                f"--spec {options.spec} with experiment = '{names[0]}': allowed is one of the two; "
                "drop one"
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
    scale = scale_of(options)[0]
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


def plans_of(options: PlanOptions, chosen: list[Chosen]) -> list[Plan]:
    """What each chosen experiment leaves to be measured on this machine."""
    scale = scale_of(options)[0]
    here = machine.detect(scale)
    asked = (scale, here, options.folder, options.only, options.rounds)
    return [
        make(
            c.build(scale), *asked, force=options.force, accumulate=c.accumulate, command=c.command
        )
        for c in chosen
    ]


def scale_of(options: PlanOptions) -> tuple[Scale, str]:
    """The scale, and a line that says which and why."""
    if options.scale is not None:
        return options.scale, f"scale: {options.scale}, as asked for"
    if (
        options.spec is not None
        and (recorded := options.spec.resolve().parts[-4:-3])
        and recorded[0] in SCALES
    ):
        return recorded[
            0
        ], f"scale: {recorded[0]}, that of the recorded run (--scale chooses another)"
    scale, why = machine.default_scale()
    return scale, f"scale: {scale}, because {why} (--scale chooses another)"


def say_scale(options: PlanOptions) -> None:
    """Which scale and why; a GPU that torch cannot use is loud, since stages would silently compute on the CPU."""
    print(scale_of(options)[1])
    if trouble := doctor.trouble_here():
        print(f"WARNING: {trouble}", file=sys.stderr)
