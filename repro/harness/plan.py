"""From an experiment to what has to be measured on this machine: baselines, filters, what is done, the estimate.

Pure but for reading what is recorded already; torch is not imported.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from repro.harness.machine import Machine
from repro.harness.mistakes import near
from repro.harness.pace import Kind, of_kinds
from repro.harness.record import Folder
from repro.harness.spec import (
    TIMED,
    Experiment,
    RunSpec,
    Scale,
    baseline,
    differences,
    digest,
    run_name,
)
from repro.io.redact import expanded
from repro.io.untrusted import SMALL, from_json, read_text

_PROCESSES = 128  # at most, of stages that share this machine's devices
_FILTERS = [name for name in RunSpec.model_fields if name not in ("model_args", "balance")]


@dataclass(frozen=True)
class PlannedRun:
    """One run of a plan.

    `status` is a status word with its `reason`; `have` and `missing` count its finished and
    outstanding rounds, of `wanted`; `added` says that only other runs' ratios need it. `differs_in`
    are the settings that tell the run from others of its experiment.
    """

    id: str
    group: str
    spec: RunSpec
    status: str
    reason: str = ""
    have: int = 0
    missing: int = 0
    added: bool = False
    bases: tuple[str, ...] = ()
    wanted: int = 0
    differs_in: str = ""

    @property
    def named(self) -> str:
        """Its id with its fidelity, unless that is "measured", and with what tells it from other runs."""
        fidelity = self.spec.fidelity
        return run_name(self.id, "" if fidelity == "measured" else fidelity, self.differs_in)

    @property
    def label(self) -> str:
        """`skipped(needs 8 devices)`, or the bare word."""
        return f"{self.status}({self.reason})" if self.reason else self.status


@dataclass(frozen=True)
class Plan:
    """The runs of one experiment at one scale on one machine."""

    experiment: Experiment
    scale: Scale
    machine: Machine
    folder: Folder
    runs: tuple[PlannedRun, ...]
    notes: tuple[str, ...]
    pace: Mapping[Kind, float]  # seconds for one run in one round
    force: bool = False
    accumulate: bool = False
    command: str = ""

    def group(self, name: str) -> list[PlannedRun]:
        """The runs of one group in order."""
        return [run for run in self.runs if run.group == name]

    def fresh_rounds(self, group: str) -> list[list[PlannedRun]]:
        """The rounds still to measure: each the runs that miss one, with the baselines of those."""
        runs = {run.id: run for run in self.group(group) if run.status != "skipped"}
        result = []
        for number in range(max((run.missing for run in runs.values()), default=0)):
            wanted = {run.id for run in runs.values() if run.missing > number}
            wanted |= {base for name in wanted for base in runs[name].bases if base in runs}
            result.append([run for run in runs.values() if run.id in wanted])
        return result

    @property
    def open(self) -> int:
        """How many measurements (a run in a round) are outstanding."""
        return len(self.outstanding)

    @property
    def seconds(self) -> float:
        """Estimated seconds for them."""
        return sum(self.pace[kind] for kind, _ in self.outstanding)

    @property
    def outstanding(self) -> list[tuple[Kind, str]]:
        """Every outstanding measurement: its kind and the run's id."""
        return [
            (self.kind(run), run.id)
            for group in self.experiment.groups
            for round_ in self.fresh_rounds(group.name)
            for run in round_
        ]

    def kind(self, run: PlannedRun) -> Kind:
        """Of which kind a run of this plan is."""
        return Kind(self.experiment.name, run.group, run.spec.fidelity)


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
    """Plan an experiment.

    Args:
        experiment: what to measure.
        scale: its scale, which names the folder.
        machine: where.
        results: the results folder.
        only: filters such as "K=2,M=4"; see `select`.
        rounds: rounds of every group, by default the group's or the experiment's own number.
        force: measure what is done again.
        accumulate: keep the runs that were recorded with other parameters of the experiment in its
            table.
        command: what a user types after ./run_all.sh to measure this.

    Raises ValueError (one line) for a filter that names no field or matches nothing.
    """
    if rounds is not None and rounds < 1:
        raise ValueError(
            f"rounds = {rounds}: allowed is 1 or more; leave it out for {experiment.rounds}"
        )
    experiment = _with_figures(experiment)
    folder = Folder.of(results, machine, scale, experiment.name)
    chosen = select(experiment, only)
    runs: list[PlannedRun] = []
    markers = folder.markers()
    recorded = cache(lambda run: {record.round for record in folder.records(run, markers)})
    ids_of = {
        group.name: {run.run_id(experiment.version, machine.identity): run for run in group.runs}
        for group in experiment.groups
    }
    for group in experiment.groups:
        ids = ids_of[group.name]
        wanted = {name for name, run in ids.items() if run in chosen}
        needed = wanted | {b for name in wanted for b in _bases(name, ids)}
        many = rounds or group.rounds or experiment.rounds
        runs += [
            _planned(
                name,
                group.name,
                ids,
                machine,
                recorded,
                folder.pictured,
                many,
                name not in wanted,
                force,
            )
            for name in ids
            if name in needed
        ]
    # The runs of this plan may differ from recorded ones alone, as after another --model-args.
    before = folder.specs(folder.about()) if accumulate else {}
    different = differences(before | {run.id: run.spec for run in runs})
    runs = [replace(run, differs_in=different[run.id]) for run in runs]
    rounds_of = {
        name: _wanted(spec, group.rounds or experiment.rounds)  # as many as the estimate is of
        for group in experiment.groups
        for name, spec in ids_of[group.name].items()
        if not _obstacle(spec, machine)
    }
    fidelities = {name: spec.fidelity for ids in ids_of.values() for name, spec in ids.items()}
    pace = of_kinds(experiment, scale, rounds_of, fidelities, markers.values())
    notes = _notes(runs)
    return Plan(
        experiment, scale, machine, folder, tuple(runs), notes, pace, force, accumulate, command
    )


def _with_figures(experiment: Experiment) -> Experiment:
    """The same runs; those of a device profile that is a file say which figures it has now."""
    files = {
        run.profile
        for group in experiment.groups
        for run in group.runs
        if (run.profile or "").endswith(".json")
    }
    if not files:
        return experiment
    figures = {name: _digest_of_figures(name) for name in files if name}
    groups = []
    for group in experiment.groups:
        runs = [
            run.model_copy(update={"figures": figures.get(run.profile or "")}) for run in group.runs
        ]
        groups.append(group.model_copy(update={"runs": tuple(runs)}))
    return experiment.model_copy(update={"groups": tuple(groups)})


def _digest_of_figures(profile: str) -> str | None:
    """Of the numbers and texts in a device profile's file, however it is formatted; None where it cannot be read."""
    try:
        return digest(from_json(read_text(Path(expanded(profile)), SMALL)))[:12]
    except ValueError:
        return None  # whoever builds the run says what is wrong with the file


def select(experiment: Experiment, only: Sequence[str]) -> list[RunSpec]:
    """The runs that match any of the filters; one filter, `K=2,M=4`, asks for all its fields at once.

    The same field twice in one filter is a choice: `K=2,K=4` takes both.
    """
    runs = [run for group in experiment.groups for run in group.runs]
    if not only:
        return runs
    chosen: list[RunSpec] = []
    for text in only:
        wanted = _parse(text)
        for field, values in wanted.items():
            present = list(dict.fromkeys(str(getattr(run, field)) for run in runs))
            for value in values:
                if value not in present:
                    raise ValueError(
                        f"--only {field}={value} matches no run of {experiment.name}: "
                        f"{field} is {', '.join(present)} there{near(value, present)}"
                    )
        found = [
            r
            for r in runs
            if all(str(getattr(r, field)) in values for field, values in wanted.items())
        ]
        if not found:
            raise ValueError(
                f"--only {text} matches no run of {experiment.name}; `repro plan "
                f"{experiment.name}` lists them"
            )
        chosen += [run for run in found if run not in chosen]
    return chosen


def _bases(name: str, ids: Mapping[str, RunSpec]) -> tuple[str, ...]:
    """The runs that `name` is divided by: the same at K=1, at K=2 and M=1, and by our own library; none for K=1."""
    if ids[name].K == 1 or ids[name].task == "fit":
        return ()
    found = (
        baseline(ids[name], ids, **other)
        for other in ({"K": 1}, {"K": 2, "M": 1}, {"library": "repro"})
    )
    return tuple(dict.fromkeys(base for base in found if base and base != name))


def _planned(
    name: str,
    group: str,
    ids: Mapping[str, RunSpec],
    machine: Machine,
    recorded: Callable[[str], set[str]],
    pictured: Callable[[str], bool],
    rounds: int,
    added: bool,
    force: bool,
) -> PlannedRun:
    """One run with its status here and the rounds it still needs; `recorded` gives the rounds that a run has."""
    spec = ids[name]
    if reason := _obstacle(spec, machine):
        return PlannedRun(name, group, spec, "skipped", reason, added=added)
    # What only accompanies others has bases of its own only where they were asked for.
    bases = (
        ()
        if added
        else tuple(base for base in _bases(name, ids) if not _obstacle(ids[base], machine))
    )
    have = len(set.intersection(*(recorded(run) for run in (name, *bases))))
    wanted = _wanted(spec, rounds)
    missing = wanted if force and not added else max(0, wanted - have, 0 if pictured(name) else 1)
    return PlannedRun(
        name, group, spec, "planned" if missing else "done", "", have, missing, added, bases, wanted
    )


def _wanted(spec: RunSpec, rounds: int) -> int:
    """In how many of a group's rounds a run takes part."""
    timed = spec.task in ("train", "calibrate") and spec.fidelity in TIMED
    return rounds if timed else 1  # all else comes out the same every time


def _obstacle(spec: RunSpec, machine: Machine) -> str:
    """Why this machine cannot measure a run, or nothing."""
    # a device
    shares = spec.fidelity == "emulated" and not (
        spec.library == "torch" and machine.device == "cuda"
    )
    shares = shares or spec.task == "fit"  # nothing is timed
    if spec.devices > machine.count and spec.fidelity in TIMED and not shares:
        return f"needs {spec.devices} devices"
    if spec.devices > max(machine.count, _PROCESSES):
        return f"needs {spec.devices} processes, of which one machine gets {_PROCESSES}"
    if spec.library == "torchgpipe" and find_spec("torchgpipe") is None:
        return "torchgpipe is not installed: .venv/bin/uv pip install --no-deps torchgpipe==0.0.7"
    return ""


def _notes(runs: Sequence[PlannedRun]) -> tuple[str, ...]:
    notes = []
    if added := [run.named for run in runs if run.added]:
        notes.append(f"added as baselines of the ratios: {', '.join(added)}")
    peers = any(run.spec.library != "repro" for run in runs)  # ratios are over them then
    if not peers and (alone := _without_baseline(runs)):
        notes.append(
            f"no speedup over K=1 for {', '.join(alone)}: there is no run with K=1 to divide by"
        )
    return tuple(notes)


def _without_baseline(runs: Sequence[PlannedRun]) -> list[str]:
    """The groups in which runs have no K=1 to be divided by: `transformer`, or `some of transformer`."""
    asked: dict[str, list[bool]] = {}
    for run in runs:
        specs = {other.id: other.spec for other in runs if other.group == run.group}
        if not run.added and run.spec.K > 1 and run.spec.task == "train":
            asked.setdefault(run.group, []).append(baseline(run.spec, specs, K=1) is not None)
    return [
        f"some of {group}" if any(has) else group for group, has in asked.items() if not all(has)
    ]


def price(plans: Iterable[Plan]) -> str:
    """What scale paper would take, as the reason not to start it by accident."""
    plans = list(plans)
    widest = max(
        (run.spec.devices for plan in plans for run in plan.runs if run.missing), default=1
    )
    hours = sum(plan.seconds for plan in plans) / 3600
    skipped = sum(run.status == "skipped" for plan in plans for run in plan.runs)
    return (
        f"scale = 'paper' would measure for about {hours:.1f} h on up to {widest} GPUs "
        f"({hours * widest:.1f} GPU-hours) and skip {skipped} runs, with nothing to download; "
        "add --yes to start, or use --scale node"
    )


def _parse(text: str) -> dict[str, list[str]]:
    """`K=2,M=4` -> {"K": ["2"], "M": ["4"]}."""
    wanted: dict[str, list[str]] = {}
    for part in text.split(","):
        field, equals, value = (piece.strip() for piece in part.partition("="))
        field = next((known for known in _FILTERS if known.lower() == field.lower()), field)
        if not equals or not value:
            raise ValueError(f"--only {text!r}: '{part}' is no FIELD=VALUE; try --only K=2,M=4")
        if field not in _FILTERS:
            raise ValueError(
                f"--only {part}: no field '{field}', only "
                f"{', '.join(_FILTERS)}{near(field, _FILTERS)}"
            )
        wanted.setdefault(field, []).append(value)
    return wanted
