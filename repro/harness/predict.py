"""One predictor: a run and what its layers cost give a step on a virtual clock, and its memory.

A source has the costs of layers: `Known` layers wait for a time that they know, `Calibrated` ones
were timed, and those of a `Roofline` take their counted FLOPs and bytes over a device's rates.
"""

from bisect import bisect_left
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from operator import mul

from repro.costs import device as devices
from repro.costs import roofline
from repro.costs.counter import Counter
from repro.costs.device import Device
from repro.costs.error_bars import CALIBRATED, ErrorBar, step_error
from repro.costs.fake import mini_batch
from repro.costs.fit import Tasks
from repro.costs.links import Links
from repro.costs.stage_memory import micro_batch
from repro.gpipe.partition.layer_costs import LinkSpeed, Profile, stage_layers
from repro.gpipe.partition.partition import Cost
from repro.gpipe.schedule.kinds import SCHEDULES
from repro.gpipe.schedule.timeline import Timeline
from repro.gpipe.tree import Tree
from repro.harness.cut import counts_of, forward_flops
from repro.harness.request import Result
from repro.harness.schema import CalibrateRound, TrainRound
from repro.harness.spec import RunSpec
from repro.harness.tasks.optimizers import OPTIMIZERS
from repro.io.redact import tilde_to_home
from repro.models import Model, build
from repro.models.timed import TimedLayer
from repro.simulate.calibration import Calibration
from repro.simulate.stage_costs import FREE, StageCosts
from repro.simulate.step import exposed_seconds, simulate

# (I + W) / B, assumed for all layers. It falls as they grow. Measured on one core of an AMD EPYC,
# for four encoder layers of width d: 1.31 (1.28 to 1.34) and 1.19 (1.16 to 1.21) with d=64, 8 and
# 32 sequences of 32 tokens; 1.15 (1.14 to 1.16) and 1.11 (1.10 to 1.13) with d=128;
# 1.06 (1.05 to 1.07) and 1.05 (1.04 to 1.06) with d=256. Medians of 60 pairs with 95 % intervals,
# A/A 0.99 to 1.00.
SPLIT = 1.17


@dataclass(frozen=True)
class Prediction:
    """A predicted step."""

    spec: RunSpec
    source: "Source"
    examples: int  # in a micro-batch; 0 where not even one fits into the spec's memory
    counts: tuple[int, ...]  # layers of each stage
    costs: StageCosts
    step: Timeline  # of one replica
    exposed_s: float  # by which the sums of gradients over replicas outlast the last backward

    @property
    def step_s(self) -> float:
        return self.step.step_time + self.exposed_s

    @property
    def idle_over_total(self) -> float:
        """The share of K x step in which stages do not work, exposed all-reduces included."""
        return 1.0 - self.step.busy() / (self.spec.K * self.step_s)

    @cached_property
    def peaks(self) -> list[int] | None:
        """Counted bytes of each rank at its peak; None if not known."""
        return self.source.peaks(self.spec, max(1, self.examples), self.counts)


class Source:
    """What a model's layers cost; memory and parameters are counted on fake tensors.

    `link` is between two devices.
    """

    memory: float | None = None  # bytes of a device; None where the layers are those of no device
    element_bytes = 4.0  # of parameters, activations and messages
    error: ErrorBar | None = None  # of a predicted step

    def __init__(self, model: Model, optimizer: str = "sgd", link: LinkSpeed | None = None) -> None:
        self.model, self._optimizer, self._kind = model, optimizer, "cpu"
        self.links = Links(link or FREE)
        self._cuts: dict[Hashable, tuple[int, ...]] = {}

    @property
    def range_text(self) -> str:
        """The range of a predicted step, for a user."""
        unknown = "not known: no step by such a profile was compared with a measured one"
        return str(self.error or unknown)

    def layers(self, n: int, recompute: str) -> Profile:
        raise NotImplementedError

    def once(self, n: int) -> tuple[Sequence[float], float]:
        raise NotImplementedError

    def costs(self, spec: RunSpec, n: int, counts: Sequence[int]) -> StageCosts:
        link = self.links.of_group(spec.K)
        return StageCosts.of(self.layers(n, spec.recompute), counts, link, *self.once(n))

    @cached_property
    def counter(self) -> Counter:
        optimizer = partial(OPTIMIZERS[self._optimizer], lr=0.01)
        return Counter(self.model.layers, self.model.loss, optimizer, self._kind)

    @cached_property
    def few(self) -> tuple[Tree, Tree]:
        return self.model.batch(1, 0)

    def examples(self, spec: RunSpec) -> int:
        """Examples in a micro-batch: N / M of a replica or, with a memory, the most that fit."""
        most = spec.N // spec.D // spec.M
        if spec.memory is None:
            return most
        tries = _sizes(most)

        def is_too_large(n: int) -> bool:
            peaks = self.peaks(spec, n, self.counts(spec, n))
            return max(peaks or [0]) > (spec.memory or 0)

        fitting = bisect_left(tries, True, key=is_too_large)
        return tries[fitting - 1] if fitting else 0

    def counts(self, spec: RunSpec, n: int) -> tuple[int, ...]:
        """Layers of each stage, cut as in the spec; times are those of this source."""
        # Plans of a search that differ in their schedule alone share a cut.
        rule = spec.balance, spec.partitioner, spec.recompute, spec.K, spec.stages_per_rank
        if (n, *rule) not in self._cuts:
            self._cuts[n, *rule] = counts_of(
                spec, self.model.layers, self.flops, lambda: self.cost(spec, n)
            )
        return self._cuts[n, *rule]

    def cost(self, spec: RunSpec, n: int) -> Cost:
        """(a, b) -> seconds of a micro-batch on a stage of layers a to b-1."""
        link, recompute = self.links.of_group(spec.K), spec.recompute != "never"
        return self.layers(n, spec.recompute).cost(link, recompute=recompute)

    def flops(self) -> Sequence[int]:
        """FLOPs of each layer's forward of one example."""
        return forward_flops(self.counter, micro_batch(self.few[0], 1))

    def in_two(self, costs: StageCosts, spec: RunSpec, n: int, counts: Sequence[int]) -> StageCosts:
        """The costs of stages whose backwards are in two parts; W takes its part of the FLOPs."""
        seconds = self.layers(n, spec.recompute).backward
        shares = self.counter.shares_of_W(micro_batch(self.few[0], n))
        of_stages = list[float]()
        for own in stage_layers(counts):
            whole = sum(seconds[index] for index in own)
            of_W = sum(shares[index] * seconds[index] for index in own)
            of_stages.append(of_W / whole if whole else 0.0)
        backward = tuple(SPLIT * B for B in costs.backward)
        weights = tuple(map(mul, of_stages, backward))
        return replace(costs, backward=backward, backward_weight=weights)

    def peaks(self, spec: RunSpec, n: int, counts: Sequence[int]) -> list[int] | None:
        """Counted bytes of each rank at its peak; None if not known."""
        return [peak.total for peak in self.tasks(spec, n).peaks(counts)]

    def gradient_bytes(self, spec: RunSpec, counts: Sequence[int]) -> list[int]:
        """Bytes of the gradients of each rank, which holds the stages r, r + K, and so on."""
        sizes = [self.counter.resident(index).parameters for index in range(len(self.counter))]
        layers = [round(self.element_bytes / 4 * size) for size in sizes]
        stages = [sum(layers[n] for n in own) for own in stage_layers(counts)]
        return [sum(stages[rank :: spec.K]) for rank in range(spec.K)]

    def tasks(self, spec: RunSpec, n: int) -> Tasks:
        """The stages that the model can be cut into."""
        inputs, targets = (mini_batch(few, n * spec.M) for few in self.few)
        return Tasks(
            self.counter,
            spec.make_schedule(),
            inputs,
            targets,
            element_bytes=self.element_bytes,
            copies_gradients=spec.D > 1,
        )


def predict(spec: RunSpec, source: Source, counts: Sequence[int] = ()) -> Prediction:
    """The step of a run, cut as in its spec unless the layers of each stage are given."""
    examples = source.examples(spec)
    n = max(1, examples)
    counts = tuple(counts) or source.counts(spec, n)
    costs = source.costs(spec, n, counts)
    if SCHEDULES[spec.schedule].split:
        costs = source.in_two(costs, spec, n, counts)
    step = simulate(spec.make_schedule(), costs)
    if not step.step_time:
        raise ValueError(f"K={spec.K}, M={spec.M}: its layers take no time at all; give them some")
    exposed = 0.0
    if spec.D > 1:
        sums = [
            source.links.all_reduce_seconds(size, spec.D, stride=spec.K)
            for size in source.gradient_bytes(spec, counts)
        ]
        exposed = exposed_seconds(step, sums)
    return Prediction(spec, source, examples, counts, costs, step, exposed)


def source_of(spec: RunSpec, kind: str) -> Source:
    """The source of a modelled run; `kind`, "cpu" or "cuda", is where operators are counted."""
    model = build(spec.model, **spec.arguments)
    if waits(model):
        return Known(model, link=spec.link)
    assert spec.profile is not None
    device = devices.load(tilde_to_home(spec.profile))
    return Roofline(device, model, spec.optimizer, spec.link, kind)


def with_predictions(
    specs: Mapping[str, RunSpec], results: Mapping[str, Result]
) -> dict[str, Result]:
    """The runs of a round; measured steps with what layers timed in it predict for them."""
    records = (each.record for each in results.values())
    timed = [record.calibration for record in records if isinstance(record, CalibrateRound)]
    found = dict(results)
    for run, each in results.items():
        spec, record = specs[run], each.record
        is_ours = spec.fidelity == "measured" and spec.library == "repro"
        if timed and isinstance(record, TrainRound) and is_ours:
            source = Calibrated(timed[-1], build(spec.model, **spec.arguments), spec.optimizer)
            step_s = predict(spec, source, record.balance).step_s
            changed = {"predicted": {"together": step_s}}
            found[run] = replace(each, record=record.model_copy(update=changed))
    return found


class Known(Source):
    """Layers that wait for a time which they know."""

    def layers(self, n: int, recompute: str) -> Profile:
        layers = self._waiting
        forward = tuple(layer.forward_s for layer in layers)
        sent = tuple(4 * layer.elements * n for layer in layers[:-1])
        return Profile(forward, forward, tuple(layer.backward_s for layer in layers), sent, sent)

    def flops(self) -> Sequence[int]:
        return [1] * len(self._waiting)  # none: all layers are alike

    def in_two(self, costs: StageCosts, spec: RunSpec, n: int, counts: Sequence[int]) -> StageCosts:
        weights = [layer.weight_s for layer in self._waiting]
        of_stages = tuple(sum(weights[index] for index in own) for own in stage_layers(counts))
        return replace(costs, backward_weight=of_stages)

    def once(self, n: int) -> tuple[Sequence[float], float]:
        return [0.0 for _ in self._waiting], 0.0

    def peaks(self, spec: RunSpec, n: int, counts: Sequence[int]) -> None:
        return None

    @cached_property
    def _waiting(self) -> list[TimedLayer]:
        made = [layer() for layer in self.model.layers if callable(layer)]
        return [layer for layer in made if isinstance(layer, TimedLayer)]


class Calibrated(Source):
    """Layers with the times of a calibration."""

    error = step_error(CALIBRATED)

    def __init__(
        self,
        calibration: Calibration,
        model: Model,
        optimizer: str = "sgd",
        link: LinkSpeed | None = None,
    ) -> None:
        super().__init__(model, optimizer, link or calibration.link)
        self.calibration = calibration

    def layers(self, n: int, recompute: str) -> Profile:
        return self.calibration.profile(n, recompute)

    def once(self, n: int) -> tuple[Sequence[float], float]:
        return self.calibration.update, 0.0


class Roofline(Source):
    """Layers with times from a device's profile: FLOPs and bytes over its rates."""

    def __init__(
        self,
        device: Device,
        model: Model,
        optimizer: str = "sgd",
        link: LinkSpeed | None = None,
        kind: str = "cpu",
        node: int | None = None,
    ) -> None:
        super().__init__(model, optimizer)
        self.links = Links(link) if link else device.links(node)
        self.device, self._kind = device, kind
        self._times = cache(self._count_times)
        self.error, self.memory = device.error, device.memory.value
        self.element_bytes = device.element_bytes.value

    def _count_times(self, n: int) -> tuple[Profile, list[float]]:
        """The layers with a micro-batch of n examples, and seconds of their updates."""
        inputs, targets = (micro_batch(few, n) for few in self.few)
        layers = roofline.layers(self.counter, inputs, self.device)
        head = roofline.head(self.counter, inputs, targets, self.device)
        return roofline.profile(layers, head), [layer.update for layer in layers]

    def layers(self, n: int, recompute: str) -> Profile:
        return self._times(n)[0]

    def once(self, n: int) -> tuple[Sequence[float], float]:
        return self._times(n)[1], self.device.setup_s.value


def waits(model: Model) -> bool:
    """Whether the layers of a model wait where others compute."""
    return model.labels.get("compute") == "timed wait"


def _sizes(most: int) -> list[int]:
    """Sizes of micro-batches to try for memory: 1, 2, 3, 4, 6, 8, 12, ... and the largest."""
    powers = [2**i for i in range(most.bit_length())]
    return sorted({most, *powers, *(min(most, power * 3 // 2) for power in powers)})
