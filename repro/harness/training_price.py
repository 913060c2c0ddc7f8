"""What trainings would take, before anything starts: GPU-hours, memory and downloads.

A step is simulated on a GPU's profile and its memory is counted, as `repro simulate` does. So the
hours are of the steps alone: reading data, evaluation and translation take time too.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from repro.costs import device as devices
from repro.data.registry import DataSet, find
from repro.harness.machine import Machine
from repro.harness.plan import Plan
from repro.harness.spec import Optimizer, RunSpec, canonical
from repro.harness.tasks.cost_sources import Roofline
from repro.harness.text import number
from repro.harness.text import size as as_size
from repro.models import build
from repro.simulate import simulate
from repro.train.recipe import Recipe

_USUAL = "h100"  # the profile where this machine has no GPU that has one


@dataclass(frozen=True)
class StepPrice:
    """What a training's step takes on a GPU.

    Attributes:
        seconds: of the step, simulated.
        peak_bytes: of the fullest GPU, counted, with a moving average of the weights.
    """

    seconds: float
    peak_bytes: float


@dataclass(frozen=True)
class TrainingPrice:
    """What the trainings of some plans would take.

    Attributes:
        profile: name of the GPU's profile.
        gpu_hours: of all steps on all GPUs, simulated.
        devices: GPUs of the widest training.
        peak_bytes: of the fullest GPU, counted.
        fullest: the run that it belongs to.
        downloads: data set -> gigabytes from a network; None where the size is not known.
    """

    profile: str
    gpu_hours: float
    devices: int
    peak_bytes: float
    fullest: str
    downloads: dict[str, float | None]

    @property
    def gigabytes(self) -> float:
        """Of all downloads whose size is known."""
        return sum(size for size in self.downloads.values() if size is not None)

    @property
    def one_line(self) -> str:
        """`about 310 GPU-hours, simulated on h100, and 2.1 GB of downloads`."""
        unknown = [name for name, size in self.downloads.items() if size is None]
        more = f" and {', '.join(unknown)}, of unknown size" if unknown else ""
        return (
            f"about {number(self.gpu_hours)} GPU-hours, simulated on {self.profile}, and "
            f"{number(self.gigabytes)} GB of downloads{more}"
        )

    @property
    def lines(self) -> list[str]:
        """GPU-hours, memory and downloads, a line each."""
        profile = devices.load(self.profile)
        fits = "fits" if self.peak_bytes <= profile.memory.value else "does NOT fit"
        return [
            f"trainings: about {number(self.gpu_hours)} GPU-hours, simulated on {profile.title}, "
            f"{profile.precision}, on up to {self.devices} GPUs at once; reading data and "
            "evaluation are not in them",
            f"memory, counted: {as_size(self.peak_bytes)} on the fullest GPU ({self.fullest}), "
            f"which {fits} into {as_size(profile.memory.value)}",
            f"downloads: {_describe_downloads(self.downloads)}",
        ]


def price_trainings(plans: Iterable[Plan]) -> TrainingPrice | None:
    """What the trainings of some plans would take that are not done; None if there are none.

    Raises:
        ValueError: one line, if a model or a recipe cannot be built.
    """
    plans = list(plans)
    runs = [
        run
        for plan in plans
        for run in plan.runs
        if run.spec.task == "learn" and run.status != "done"
    ]
    if not runs:
        return None
    profile = _profile_of(plans[0].machine)
    names = {canonical(run.spec.plain()): run.named for run in runs}
    trainings = [run.spec for run in runs]
    # Runs of one process share a pretraining, so it is paid for once.
    for run in runs:
        before = run.spec.pretraining_run()
        if before is not None and canonical(before.plain()) not in names:
            names[canonical(before.plain())] = f"the pretraining of {run.named}"
            trainings.append(before)
    steps = _StepPrices(profile, plans[0].machine)
    prices = [(steps.of(spec), spec) for spec in trainings]
    fullest, of_fullest = max(prices, key=lambda pair: pair[0].peak_bytes)
    seconds = sum(price.seconds * spec.steps * spec.K * spec.D for price, spec in prices)
    return TrainingPrice(
        profile,
        seconds / 3600,
        max(spec.K * spec.D for spec in trainings),
        fullest.peak_bytes,
        names[canonical(of_fullest.plain())],
        downloads(trainings),
    )


def downloads(trainings: Sequence[RunSpec]) -> dict[str, float | None]:
    """Gigabytes that the data of some trainings are; None where the size is not known."""
    sizes: dict[str, float | None] = {}
    for spec in trainings:
        assert spec.training is not None
        for name in (*spec.training.data, *spec.training.data_args.get("vocabulary_of", ())):
            entry = find(name)
            if entry.hub:
                sizes[entry.name] = entry.gigabytes
    return sizes


class _StepPrices:
    """Prices of steps; trainings that differ in data, recipe or seed alone share one."""

    def __init__(self, profile: str, machine: Machine) -> None:
        self._profile = profile
        self._device = _device(machine)
        self._known: dict[str, StepPrice] = {}

    def of(self, training: RunSpec) -> StepPrice:
        assert training.training is not None
        recipe = Recipe(**training.training.recipe)
        spec = _simulated(training, recipe, self._profile)
        key = canonical([spec.plain(), recipe.ema is not None])
        if key not in self._known:
            self._known[key] = _step_price(spec, self._device, averages=recipe.ema is not None)
        return self._known[key]


def _simulated(training: RunSpec, recipe: Recipe, profile: str) -> RunSpec:
    examples = max(1, training.N // training.D // training.M)
    return RunSpec(
        model=training.model,
        model_args=training.model_args,
        K=training.K,
        M=training.M,
        N=examples * training.M,  # micro-batches are simulated alike
        schedule=training.schedule,
        stages_per_rank=training.stages_per_rank,
        checkpoint=training.checkpoint,
        balance=training.balance,
        partitioner=training.partitioner,
        optimizer=_optimizer(recipe),
        fidelity="simulated",
        profile=profile,
        link=training.link,
    )


def _optimizer(recipe: Recipe) -> Optimizer:
    """An optimizer of a spec that keeps as many numbers for each weight as the recipe's."""
    if recipe.optimizer == "adam":
        return "adam"
    slots = (recipe.optimizer == "rmsprop") + (recipe.momentum > 0)
    kept: tuple[Optimizer, ...] = ("sgd", "rmsprop", "rmsprop-momentum")
    return kept[slots]


def _step_price(spec: RunSpec, device: str, *, averages: bool) -> StepPrice:
    assert spec.profile is not None
    source = Roofline(spec, build(spec.model, **spec.arguments), device)
    examples = source.examples()
    counts = source.cut(source.layers(examples), source.link)
    costs = source.costs(examples, counts, source.link)
    peaks = source.peaks(examples, counts)
    if averages:
        # The moving average is another copy of a rank's weights.
        copies = source.parameter_bytes(counts)
        peaks = [peak + copy for peak, copy in zip(peaks, copies, strict=True)]
    return StepPrice(simulate(spec.make_schedule(), costs).step_time, max(peaks))


def _device(machine: Machine) -> str:
    """Whose operators are counted; the CPU's stand in for a GPU's where there is none."""
    return "cuda" if machine.device == "cuda" and machine.count else "cpu"


def _profile_of(machine: Machine) -> str:
    """The profile of this machine's GPUs, by their name, or the usual one."""
    return next((name for name in devices.names() if machine.has_profile(name)), _USUAL)


def _describe_downloads(sizes: dict[str, float | None]) -> str:
    """The sum, and each data set with what must be known about it."""
    if not sizes:
        return "none"
    total = sum(size for size in sizes.values() if size is not None)
    parts = [_describe_download(find(name), size) for name, size in sizes.items()]
    return f"{number(total)} GB: {'; '.join(parts)}"


def _describe_download(entry: DataSet, size: float | None) -> str:
    text = f"{entry.name} " + ("of unknown size" if size is None else f"{number(size)} GB")
    if entry.gated:
        text += f" (gated: accept its terms at {entry.page} and set HF_TOKEN)"
    return text
