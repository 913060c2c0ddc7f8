"""Predicted steps beside published and measured ones, one cell for each K and M."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from math import nan
from typing import Literal, NamedTuple

from experiments.costs.runs import GPU, HERE, NAME, PROFILES, SPEED, simulated_group
from repro.harness.results import Results, Round, Run
from repro.harness.schema import RooflineRound
from repro.harness.spec import TINY, RunSpec
from repro.report.compare import matching, rows_of
from repro.simulate import simulate

Source = Literal["a", "b", "c", "d", "rehearsal"]
SOURCES: dict[Source, str] = {
    "a": "torchgpipe, Tesla P40",
    "b": "Lingvo, V100",
    "c": "measured on CPU cores",
    "d": "measured on GPUs",
    "rehearsal": "rehearsal on a CPU of what GPUs measure",
}
_SOURCE_OF: dict[str, Source] = {
    "torchgpipe-amoebanet-d": "a",
    "torchgpipe-resnet101": "a",
    "lingvo-v100": "b",
}
_ON_GPUS = ("node", "paper")  # scales that measure on GPUs


class Pair(NamedTuple):
    """A predicted and the real throughput of the same step, in the same unit."""

    predicted: float
    real: float

    @property
    def quotient(self) -> float:
        """Predicted over real."""
        return self.predicted / self.real


@dataclass(frozen=True)
class Cell:
    """One step that is known, with what the cost model predicts for it.

    Attributes:
        source: of the real step, one of `SOURCES`.
        run: the simulated run of a published step, or the measured run.
        pairs: round -> throughput in examples per second; one round for a published step. Lingvo
            published throughput for each GPU over that of one GPU, in no unit.
        base: the same of the cell that ratios of this one are over, in the same rounds.
    """

    source: Source
    run: Run
    pairs: Mapping[str, Pair]
    base: Mapping[str, Pair]

    @property
    def has_unit(self) -> bool:
        """Whether the throughput itself is known, and not only its ratio to another one."""
        return self.source != "b"

    @property
    def is_base(self) -> bool:
        return self.pairs is self.base

    @property
    def absolute_error(self) -> float:
        """Predicted over real throughput, minus 1: median over rounds. NaN if only ratios exist."""
        if not self.has_unit:
            return nan
        return statistics.median(pair.quotient for pair in self.pairs.values()) - 1

    @property
    def ratio_error(self) -> float:
        """Predicted over real ratio to the base, minus 1: median over rounds. NaN of the base."""
        ratios = [
            pair.quotient / self.base[name].quotient
            for name, pair in self.pairs.items()
            if name in self.base
        ]
        return statistics.median(ratios) - 1 if ratios and not self.is_base else nan

    def throughput(self, which: Literal["predicted", "real"]) -> float:
        """Median over rounds."""
        return statistics.median(getattr(pair, which) for pair in self.pairs.values())


def cells(results: Results) -> list[Cell]:
    """Every cell whose step is published or measured, and predicted."""
    runs = [run for run in rows_of(results, experiment=NAME) if run.done]
    judged = []
    for group, published in SPEED.items():
        judged += _published(matching(runs, group=group), published(), _SOURCE_OF[group])
    here = [run for run in runs if run.group.endswith(HERE)]
    for place, group in dict.fromkeys((run.place, run.group) for run in here):
        judged += _measured(matching(here, place=place, group=group))
    for measured, simulated in on_gpus(results):
        judged += _by_profile(measured, simulated)
    return judged


def on_gpus(results: Results) -> list[tuple[list[Run], list[Run]]]:
    """What one GPU measured of a model, with the same simulated by that GPU's profile.

    A rehearsal on a CPU takes the first profile: its errors mean nothing.
    """
    runs = [run for run in rows_of(results, experiment=NAME) if run.done]
    of_gpus = [run for run in runs if run.group.endswith(GPU)]
    pairs = []
    for place, group in dict.fromkeys((run.place, run.group) for run in of_gpus):
        measured = matching(of_gpus, place=place, group=group)
        profiles = profiles_of(measured[0].device)
        if measured[0].scale in TINY:
            profiles = [PROFILES[0]]
        for profile in profiles:
            name = simulated_group(measured[0].model, profile)
            pairs.append((measured, matching(runs, place=place, group=name)))
    return pairs


def profiles_of(device: str) -> list[str]:
    """The profile of a GPU by its name: `NVIDIA H100 80GB HBM3`, but not `NVIDIA H100 PCIe`.

    Both profiles are of SXM modules; other modules of these chips have other clocks and memories.
    """
    words = device.upper().split()
    if {"PCIE", "NVL"} & set(words):
        return []
    return [name for name in PROFILES if name.upper() in words]


def _by_profile(measured: list[Run], simulated: list[Run]) -> list[Cell]:
    """Steps of K=1, M and rule by M and rule; the first one is the base."""
    recorded = []
    for run in measured:
        if run.spec.task != "train":
            continue
        settings = {"K": 1, "M": run.M, "remat": run.remat}
        predicted = next(iter(matching(simulated, **settings)), None)
        if predicted is not None:
            pairs = {
                round_.name: Pair(predicted.throughput, round_.throughput) for round_ in run.rounds
            }
            recorded.append((run, pairs))
    base = recorded[0][1] if recorded else {}
    source: Source = "rehearsal" if measured[0].scale in TINY else "d"
    return [Cell(source, run, pairs, base) for run, pairs in recorded]


def _published(runs: list[Run], rows: list[tuple[RunSpec, float]], source: Source) -> list[Cell]:
    """The simulated runs with their published throughput; the first row is the base."""
    recorded = []
    for spec, real in rows:
        run = next((run for run in runs if run.spec == spec), None)
        pairs = {"published": Pair(run.throughput, real)} if run else {}
        recorded.append((run, pairs))
    base = recorded[0][1]
    return [Cell(source, run, pairs, base) for run, pairs in recorded if run]


def _measured(group: list[Run]) -> list[Cell]:
    rates = {
        (run.K, round_.name): round_.record
        for run in group
        for round_ in run.rounds
        if isinstance(round_.record, RooflineRound)
    }
    recorded = []
    for run in group:
        if run.spec.task != "train":
            continue
        pairs = {}
        for round_ in run.rounds:
            record = rates.get((run.K, round_.name))
            if record is not None:
                predicted = run.N / _step(record, run, round_)
                pairs[round_.name] = Pair(predicted, round_.throughput)
        recorded.append((run, pairs))
    base = next((pairs for run, pairs in recorded if (run.K, run.M) == (1, 1)), {})
    source: Source = "d" if group[0].scale in _ON_GPUS else "c"
    return [Cell(source, run, pairs, base) for run, pairs in recorded if pairs]


def _step(record: RooflineRound, run: Run, round_: Round) -> float:
    """Seconds of a step, from rates of the same round and with the cut of the measured step.

    It is simulated here and is no run of the experiment, because the rates and the cut are known
    only once both have been measured.
    """
    calibration = record.calibration
    spec = run.spec
    costs = calibration.stages(round_.record.balance, spec.N // spec.M, spec.checkpoint)
    return simulate(spec.make_schedule(), costs).step_time
