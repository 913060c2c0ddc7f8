"""Plans: which runs of an experiment are still to be measured on this machine.

A plan is made from the experiment and from what is recorded already. torch is not imported.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from math import ceil
from pathlib import Path

from repro.harness.journal import Journal
from repro.harness.machine import Machine, torchrun_rank
from repro.harness.own_code import code_of
from repro.harness.request import Status
from repro.harness.spec import (
    FIELDS,
    PIPELINING,
    TIMED,
    UNLIMITED_MEMORY,
    WHOLE_WORLD,
    Experiment,
    Library,
    RunSpec,
    Scale,
    digest,
    run_name,
)
from repro.harness.vary import baselines, compared, differences
from repro.io.redact import tilde_to_home
from repro.io.untrusted import SMALL, did_you_mean, from_json, read_text

_CONTEXT = 600 * 2**20  # of a process on a GPU, besides what torch hands out: an assumption
_PROCESSES = 128  # at most, of stages that share this machine's devices
# Peer libraries that are not among the dependencies -> what installs them.
INSTALL: dict[Library, str] = {"deepspeed": "deepspeed==0.19.8"}
# What `--only` chooses by.
FILTERS = [name for name in FIELDS if name not in ("model_args", "balance", "training")]
FILTERS.append("method")  # a column of `repro plan`


@dataclass(frozen=True)
class PlannedRun:
    id: str
    group: str
    spec: RunSpec
    obstacle: str = ""  # why it is skipped
    added: bool = False  # only ratios of other runs need it
    have: int = 0  # rounds that are recorded
    missing: int = 0  # rounds that are still to be measured
    wanted: int = 0  # rounds that it takes part in
    seconds: float = 0.0  # that it takes in a round; an estimate, 0 if there is none
    bases: tuple[str, ...] = ()  # ids of the runs that it is divided by
    differs_in: str = ""  # settings that tell it from other runs of its experiment

    @property
    def named(self) -> str:
        return run_name(self.id, self.spec.fidelity, self.differs_in)

    @property
    def status(self) -> Status:
        if self.obstacle:
            return Status("skipped", self.obstacle)
        return Status("planned" if self.missing else "done")


@dataclass(frozen=True)
class Plan:
    """The runs of one experiment at one scale on one machine."""

    experiment: Experiment
    scale: Scale
    machine: Machine
    journal: Journal  # where it is recorded
    runs: tuple[PlannedRun, ...]  # in the order of the experiment's groups
    force: bool = False  # measure again what is done
    accumulate: bool = False  # keep runs that were recorded with other parameters
    command: str = ""  # what a user types to measure this

    def fresh_rounds(self, group: str) -> list[list[PlannedRun]]:
        """The outstanding rounds: in each the runs that miss one, and the baselines of these."""
        members = [run for run in self.runs if run.group == group and not run.obstacle]
        runs = {run.id: run for run in members}
        rounds = []
        for number in range(max((run.missing for run in runs.values()), default=0)):
            wanted = {run.id for run in runs.values() if run.missing > number}
            wanted |= {base for name in wanted for base in runs[name].bases if base in runs}
            rounds.append([run for run in runs.values() if run.id in wanted])
        return rounds

    @property
    def is_of_paper(self) -> bool:
        return bool(self.experiment.paper or self.experiment.neurips)

    @property
    def outstanding(self) -> list[PlannedRun]:
        return [
            run
            for group in self.experiment.groups
            for round_ in self.fresh_rounds(group.name)
            for run in round_
        ]

    @property
    def seconds(self) -> float:
        return sum(run.seconds for run in self.outstanding)


def make(
    experiment: Experiment,
    scale: Scale,
    machine: Machine,
    results: Path,
    only: Sequence[str] = (),
    rounds: int | None = None,
    *,
    force: bool = False,
    accumulate: bool = False,
    command: str = "",
) -> Plan:
    """Plan an experiment; `only` are filters such as "K=2,M=4", see `select`."""
    experiment = _with_figures(experiment)
    journal = Journal.of(results, machine, scale, experiment.name)
    chosen = {id(run) for run in select(experiment, only)}
    runs: list[PlannedRun] = []
    usual_rounds = 0  # of all runs that this machine can measure, chosen or not
    for group in experiment.groups:
        specs = {run.run_id(experiment.version, machine.identity): run for run in group.runs}
        usual = group.rounds or experiment.rounds
        bases_of = _bases(specs)
        asked = {name for name, spec in specs.items() if id(spec) in chosen}
        added = {base for name in asked for base in bases_of[name]} - asked
        obstacles = {
            name: obstacle(spec, machine, shared=group.shared) for name, spec in specs.items()
        }
        for name, spec in specs.items():
            usual_rounds += 0 if obstacles[name] else _wanted(spec, usual)
            run = PlannedRun(name, group.name, spec, obstacles[name], name in added)
            if not run.obstacle:
                # A run that only accompanies others needs no bases of its own.
                bases = () if run.added else bases_of[name]
                run = replace(run, bases=tuple(base for base in bases if not obstacles[base]))
                run = _with_rounds(run, journal, rounds or usual, force=force)
            if name in asked | added:
                runs.append(run)
    # The runs of this plan may differ from recorded ones alone, as after another --model-args.
    before = {name: journal.spec(name) for name in journal.runs} if accumulate else {}
    different = differences(before | {run.id: run.spec for run in runs})
    seconds = 60 * experiment.minutes.get(scale, 0.0) / max(1, usual_rounds)
    planned = tuple(replace(run, differs_in=different[run.id], seconds=seconds) for run in runs)
    return Plan(experiment, scale, machine, journal, planned, force, accumulate, command)


def _with_rounds(run: PlannedRun, journal: Journal, rounds: int, *, force: bool) -> PlannedRun:
    # Only rounds count in which the run and its bases were measured together.
    recorded = [{each.round for each in journal.rounds_of(name)} for name in (run.id, *run.bases)]
    have, wanted = len(set.intersection(*recorded)), _wanted(run.spec, rounds)
    missing = wanted if force and not run.added else max(0, wanted - have)
    return replace(run, have=have, missing=missing, wanted=wanted)


def _with_figures(experiment: Experiment) -> Experiment:
    """The same runs; those made from the user's own files get a digest of these files."""
    profile_digest, code_digest = cache(_digest_of_figures), cache(code_of)

    def marked(run: RunSpec) -> RunSpec:
        digests: list[str | None] = []
        if run.profile is not None and run.profile.endswith(".json"):
            digests.append(profile_digest(run.profile))
        if run.model.startswith("import:"):
            digests.append(code_digest(run.model))
        known = list(filter(None, digests))
        figures = digest(known)[:12] if len(known) > 1 else next(iter(known), None)
        return run.model_copy(update={"figures": figures}) if digests else run

    groups = (
        group.model_copy(update={"runs": tuple(map(marked, group.runs))})
        for group in experiment.groups
    )
    return experiment.model_copy(update={"groups": tuple(groups)})


def _digest_of_figures(profile: str) -> str | None:
    """Digest of the content of a device profile, however its file is formatted."""
    try:
        return digest(from_json(read_text(Path(tilde_to_home(profile)), SMALL)))[:12]
    except ValueError:
        return None  # whoever builds the run says what is wrong with the file


def select(experiment: Experiment, only: Sequence[str]) -> list[RunSpec]:
    """The runs that match any filter. A filter, `K=2,M=4`, asks for all its fields at once.

    The same field twice in one filter is a choice: `K=2,K=4` takes both.
    """
    runs = [run for group in experiment.groups for run in group.runs]
    chosen: dict[int, RunSpec] = {}
    for text in only:
        matching = runs
        for field, values in _parse(text).items():
            matching = [run for run in matching if str(getattr(run, field)) in values]
            if not matching:
                present = list(dict.fromkeys(str(getattr(run, field)) for run in runs))
                raise ValueError(
                    f"--only {text} matches no run of {experiment.name}: {field} is "
                    f"{', '.join(present)} there{did_you_mean(values[0], present)}"
                )
        chosen |= {id(run): run for run in matching}
    return [*chosen.values()] if only else runs


def _parse(text: str) -> dict[str, list[str]]:
    """`K=2,M=4` -> {"K": ["2"], "M": ["4"]}."""
    wanted: dict[str, list[str]] = {}
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        field = next((known for known in FILTERS if known.lower() == name.lower()), None)
        if field is None:
            known = f"fields are {', '.join(FILTERS)}{did_you_mean(name, FILTERS)}"
            raise ValueError(f"--only {part}: unknown field {name}; {known}")
        if not value:
            raise ValueError(f"--only {part}: no value; write {field}=VALUE, such as K=2")
        wanted.setdefault(field, []).append(value)
    return wanted


def _bases(specs: Mapping[str, RunSpec]) -> dict[str, tuple[str, ...]]:
    """The runs of a group that each run is divided by."""
    first = {compared(spec): run for run, spec in reversed([*specs.items()])}
    found: dict[str, tuple[str, ...]] = {}
    for name, spec in specs.items():
        bases = [first.get(compared(spec, **changed)) for changed in baselines(spec)]
        found[name] = tuple(dict.fromkeys(base for base in bases if base and base != name))
    return found


def _wanted(spec: RunSpec, rounds: int) -> int:
    """In how many of a group's rounds a run takes part: one, unless a clock times it."""
    return rounds if spec.timed else 1


def obstacle(spec: RunSpec, machine: Machine, *, shared: bool = False) -> str:
    """Why a machine cannot measure a run, whatever its model; empty if it can.

    `shared`: its stages may share a device, although a clock times them.
    """
    # Emulated stages wait instead of computing, and some tasks time nothing: they can share a
    # device. But NCCL, which torch's pipeline uses on GPUs, allows one process for each GPU.
    needs_own_gpu = spec.library in (*PIPELINING, *WHOLE_WORLD) and machine.device == "cuda"
    computes_for_a_clock = spec.timed and spec.fidelity != "emulated" and not shared
    shares_devices = not computes_for_a_clock and not needs_own_gpu
    if spec.devices > machine.count and spec.fidelity in TIMED and not shares_devices:
        return f"needs {spec.devices} devices"
    stages = ceil(spec.K / machine.count)  # that share a device
    if spec.task == "fit" and spec.fidelity == "measured" and machine.memory:
        needed = stages * ((spec.memory or 0) + _CONTEXT)
        if spec.memory != UNLIMITED_MEMORY and needed > machine.memory:
            there = machine.memory / 2**30
            return f"needs {needed / 2**30:.0f} GiB on each GPU, which has {there:.0f}"
    if spec.devices > max(machine.count, _PROCESSES):
        return f"needs {spec.devices} processes, of which one machine gets {_PROCESSES}"
    if spec.library in INSTALL and find_spec(spec.library) is None:
        return f"{spec.library} is not installed: .venv/bin/uv pip install {INSTALL[spec.library]}"
    world = int(os.environ["WORLD_SIZE"]) if torchrun_rank() is not None else spec.devices
    if spec.library in WHOLE_WORLD and spec.devices != world:
        return f"{spec.library} takes all processes: start torchrun with {spec.devices}"
    return ""
