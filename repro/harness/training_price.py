"""What trainings would take, before anything starts: GPU-hours, memory and downloads.

A step is simulated on a GPU's profile and its memory is counted, as `repro simulate` does. So the
hours are of the steps alone: reading data, evaluation and translation take time too.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from repro.costs import device as devices
from repro.data.registry import find
from repro.harness.machine import Machine
from repro.harness.plan import Plan
from repro.harness.predict import predict, source_of
from repro.harness.spec import Optimizer, RunSpec, canonical
from repro.harness.text import number, size
from repro.train.recipe import Recipe

_USUAL = "h100"  # the profile where this machine has no GPU that has one
# What a step of a training has in common with that of a simulated run.
_SAME = ("model", "model_args", "K", "M", "schedule", "stages_per_rank", "checkpoint", "balance")
_SAME += ("partitioner", "link")


@dataclass(frozen=True)
class TrainingPrice:
    """What the trainings of some plans would take."""

    profile: str  # of the GPUs
    gpu_hours: float  # of all steps on all GPUs, simulated
    devices: int  # GPUs of the widest training
    peak_bytes: float  # of the fullest GPU, counted, with a moving average of the weights
    fullest: str  # the run that it belongs to
    downloads: dict[str, float | None]  # data set -> gigabytes; None where they are not known

    @property
    def one_line(self) -> str:
        """`about 310 GPU-hours, simulated on h100, and 2.1 GB of downloads`."""
        hours = f"about {number(self.gpu_hours)} GPU-hours, simulated on {self.profile}"
        return f"{hours}, and {self._gigabytes} of downloads"

    @property
    def lines(self) -> list[str]:
        profile = devices.load(self.profile)
        memory = profile.memory.value
        fits = "fits" if self.peak_bytes <= memory else "does NOT fit"
        known = {n: amount for n, amount in self.downloads.items() if amount is not None}
        each = [f"{name} {number(amount)} GB{_terms(name)}" for name, amount in known.items()]
        if unknown := [name for name in self.downloads if name not in known]:
            more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
            each.append(f"{', '.join(unknown[:3])}{more}, of unknown size")
        return [
            f"trainings: about {number(self.gpu_hours)} GPU-hours, simulated on {profile.title}, "
            f"{profile.precision}, on up to {self.devices} GPUs at once; reading data and "
            "evaluation are not in them",
            f"memory, counted: {size(self.peak_bytes)} on the fullest GPU ({self.fullest}), "
            f"which {fits} into {size(memory)}",
            f"downloads: {number(sum(known.values()))} GB: {'; '.join(each)}"
            if each
            else "downloads: none",
        ]

    @property
    def _gigabytes(self) -> str:
        known = [amount for amount in self.downloads.values() if amount is not None]
        more = "" if len(known) == len(self.downloads) else " and what has no known size"
        return f"{number(sum(known))} GB{more}"


def _terms(name: str) -> str:
    entry = find(name)
    return f" (gated: accept its terms at {entry.page} and set HF_TOKEN)" if entry.gated else ""


def price_trainings(plans: Sequence[Plan]) -> TrainingPrice | None:
    """What the trainings of some plans would take that are not done; None if there are none."""
    runs = [run for plan in plans for run in plan.runs]
    learnt = [run for run in runs if run.spec.task == "learn" and run.status != "done"]
    if not learnt:
        return None
    # Runs of one process share a pretraining, so it is paid for once.
    before = [(run.spec.pretraining_run(), f"the pretraining of {run.named}") for run in learnt]
    trainings: dict[str, tuple[RunSpec, str]] = {}
    for spec, name in [*((run.spec, run.named) for run in learnt), *before]:
        if spec is not None:
            trainings.setdefault(canonical(spec.plain()), (spec, name))
    machine = plans[0].machine
    words = re.split(r"[\s-]+", machine.kind.lower())  # "p100-pcie" is that of a "Tesla P100"
    profile = next((name for name in devices.names() if name.split("-")[0] in words), _USUAL)
    prices: dict[str, tuple[float, float]] = {}  # trainings that differ in data alone share a step
    seconds = peak_bytes = 0.0
    fullest = ""
    downloads: dict[str, float | None] = {}
    for spec, name in trainings.values():
        assert spec.training is not None
        recipe = Recipe(**spec.training.recipe)
        # A step of one replica, with micro-batches of one size.
        step = RunSpec(
            **{field: getattr(spec, field) for field in _SAME},
            N=max(1, spec.N // spec.D // spec.M) * spec.M,
            optimizer=_optimizer(recipe),
            fidelity="simulated",
            profile=profile,
        )
        key = canonical([step.plain(), recipe.ema is not None])
        if key not in prices:
            prices[key] = _step_price(step, machine, averages=recipe.ema is not None)
        step_s, peak = prices[key]
        seconds += step_s * spec.steps * spec.K * spec.D
        if peak > peak_bytes:
            peak_bytes, fullest = peak, name
        sets = (*spec.training.data, *spec.training.data_args.get("vocabulary_of", ()))
        entries = map(find, sets)
        downloads |= {entry.name: entry.gigabytes for entry in entries if entry.hub}
    widest = max(spec.K * spec.D for spec, _ in trainings.values())
    return TrainingPrice(profile, seconds / 3600, widest, peak_bytes, fullest, downloads)


def _optimizer(recipe: Recipe) -> Optimizer:
    """An optimizer of a spec that keeps as many numbers for each weight as the recipe's."""
    if recipe.optimizer == "adam":
        return "adam"
    slots = (recipe.optimizer == "rmsprop") + (recipe.momentum > 0)
    kept: tuple[Optimizer, ...] = ("sgd", "rmsprop", "rmsprop-momentum")
    return kept[slots]


def _step_price(spec: RunSpec, machine: Machine, *, averages: bool) -> tuple[float, float]:
    # The CPU's operators stand in for a GPU's where there is none.
    kind = "cuda" if machine.device == "cuda" and machine.count else "cpu"
    step = predict(spec, source_of(spec, kind))
    peaks = step.peaks or [0]
    if averages:
        # The moving average is another copy of a rank's weights.
        copies = step.source.parameter_bytes(spec, step.counts)
        peaks = [peak + copy for peak, copy in zip(peaks, copies, strict=True)]
    return step.step_s, max(peaks)
