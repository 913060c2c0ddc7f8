"""Layer times for the cost model: from a device profile, a calibration, or layers that wait."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from repro.costs import Counter, Device, LayerTime, Messages, Task, mini_batch, roofline
from repro.costs import device as devices
from repro.costs.fit import Tasks
from repro.costs.stage_memory import micro_batch, peak_memory
from repro.gpipe.core.microbatch import Tree, sizes
from repro.gpipe.partition.layer_costs import LinkSpeed, Profile
from repro.gpipe.partition.partition import PARTITIONERS, SMALLEST_LARGEST, additive
from repro.harness.spec import RunSpec
from repro.harness.tasks.optimizers import OPTIMIZERS
from repro.io.redact import expanded
from repro.models import Model
from repro.models.timed import TimedLayer
from repro.simulate import FREE, Calibration, StageCosts, settle, simulate


class Counted(NamedTuple):
    """What counts in the time of a step.

    Attributes:
        terms: of the roofline.
        ends: the model's ends: embedding, softmax, loss.
        link: messages between stages.
        setup: what a step takes before its first action.
        update: of the optimizer.
        folded: kernels are folded before matrices are padded, see `repro.costs.products`.
    """

    terms: tuple[str, ...] = roofline.TERMS
    ends: bool = True
    link: bool = True
    setup: bool = True
    update: bool = True
    folded: bool = False


_ALL = Counted()
_LAYERS_ALONE = Counted(link=False, setup=False, update=False)
# Causes of a step's time in the order in which they are added, with all that counts up to each.
CAUSES = {
    "imbalance": _LAYERS_ALONE._replace(terms=("matmul",), ends=False),
    "ends": _LAYERS_ALONE._replace(terms=("matmul",)),
    "tile padding": _LAYERS_ALONE._replace(terms=("matmul", "padding")),
    "memory-bound": _LAYERS_ALONE._replace(terms=("matmul", "padding", "memory")),
    "launch": _LAYERS_ALONE,
    "transfer": Counted(setup=False, update=False),
    "set-up": Counted(update=False),
}
# Bounds of a step's time. Fused: a compiler makes every other operator a part of a matrix product,
# which then takes no time of its own.
BOUNDS = {
    "fused": Counted(terms=("matmul", "padding")),
    "fused and folded": Counted(terms=("matmul", "padding"), folded=True),
}
# Figures of a device that `sensitivity` scales, one at a time, by each of the factors.
FIGURES = (
    "matmul_flops",
    "other_flops",
    "bytes_per_second",
    "launch_s",
    "tile",
    "setup_s",
    "link_bytes_per_second",
    "link_latency_s",
)
FACTORS = {"halved": 0.5, "doubled": 2.0}
_last: Counter | None = None  # the last counter of this process, whose traces the next one uses
Times = tuple[Sequence[LayerTime], LayerTime]  # of layers, of the loss


class Source:
    """What a model's layers cost.

    Attributes:
        link: between two stages.
        memory: bytes of a device; None where the layers are those of no device.
    """

    link: LinkSpeed
    memory: float | None = None

    def examples(self) -> int:
        """Examples in a micro-batch; 0 where not even one fits into the spec's memory."""
        raise NotImplementedError

    def layers(self, n: int) -> Profile:
        """Seconds of each layer for a micro-batch of n examples."""
        raise NotImplementedError

    def cut(self, layers: Profile, link: LinkSpeed) -> tuple[int, ...]:
        raise NotImplementedError

    def costs(self, n: int, counts: Sequence[int], link: LinkSpeed) -> StageCosts:
        """Costs of stages with these numbers of layers."""
        raise NotImplementedError

    def cumulative_causes(self, n: int) -> dict[str, float]:
        """Cause -> seconds of the step with it and all causes before it; empty if not known."""
        return {}

    def bounds(self, n: int) -> dict[str, float]:
        """Bound -> seconds of the step with less that counts; empty if not known."""
        return {}

    def sensitivity(self, n: int) -> dict[str, dict[str, Any]]:
        """Figure of the device -> its basis, and seconds of the step under each of `FACTORS`."""
        return {}

    def peaks(self, n: int, counts: Sequence[int]) -> list[int] | None:
        """Counted bytes of each rank at its peak; None if not known."""
        return None


class Waits(Source):
    """Layers that wait for a time which they know."""

    def __init__(self, spec: RunSpec, model: Model) -> None:
        self._spec = spec
        made = [layer() for layer in model.layers if callable(layer)]
        self._layers = [layer for layer in made if isinstance(layer, TimedLayer)]
        self.link = spec.link or FREE

    def examples(self) -> int:
        """Examples in a micro-batch."""
        return sizes(self._spec.N, self._spec.M)[0]

    def layers(self, n: int) -> Profile:
        """Seconds of each layer, which do not depend on n, and bytes that it sends."""
        forward = tuple(layer.forward_s for layer in self._layers)
        sent = tuple(4 * layer.elements * n for layer in self._layers[:-1])
        backward = tuple(layer.backward_s for layer in self._layers)
        recompute = forward if self._spec.checkpoint != "never" else (0.0,) * len(forward)
        return Profile(forward, recompute, backward, sent, sent)

    def cut(self, layers: Profile, link: LinkSpeed) -> tuple[int, ...]:
        return _cut(self._spec, layers, link, {})

    def costs(self, n: int, counts: Sequence[int], link: LinkSpeed) -> StageCosts:
        updates = [vars(layer.weight)["update_s"] for layer in self._layers]
        return StageCosts.of(self.layers(n), counts, link, updates)


class _Counted(Source):
    """A model whose memory and parameters are counted."""

    def __init__(self, spec: RunSpec, model: Model, device: str) -> None:
        global _last
        optimizer = partial(OPTIMIZERS[spec.optimizer], lr=spec.lr)
        _last = self._counter = Counter(model.layers, model.loss, optimizer, _last, device)
        self._spec = spec
        self._few = model.batch(1, 0)

    def cut(self, layers: Profile, link: LinkSpeed) -> tuple[int, ...]:
        costs = counted_costs(self._counter, micro_batch(self._few[0], 1))
        return _cut(self._spec, layers, link, costs)

    def peaks(self, n: int, counts: Sequence[int]) -> list[int]:
        """Counted bytes of each rank at its peak."""
        spec = self._spec
        schedule = spec.make_schedule()
        inputs, targets = (mini_batch(few, n * spec.M) for few in self._few)
        tasks = Task.of_ranks(schedule, counts, inputs, targets, Messages())
        return [peak_memory(self._counter, task).total for task in tasks]

    def evenest(self, n: int) -> tuple[int, ...]:
        """The cut whose fullest stage takes the least memory; each rank holds one stage."""
        return self._tasks(n).evenest()

    def fits(self, n: int, memory: int) -> bool:
        """Whether there is any cut whose stages take at most `memory` bytes each."""
        return self._tasks(n).pack(memory) is not None

    def parameter_bytes(self, counts: Sequence[int]) -> list[int]:
        """Bytes of the parameters of each rank, and so of their gradients."""
        layers = [self._counter.resident(index).parameters for index in range(len(self._counter))]
        stages = [sum(layers[a:b]) for a, b in pairwise([0, *accumulate(counts)])]
        # Rank r holds the stages r, r + K, and so on.
        return [sum(stages[rank :: self._spec.K]) for rank in range(self._spec.K)]

    def _tasks(self, n: int) -> Tasks:
        inputs, targets = (mini_batch(few, n * self._spec.M) for few in self._few)
        return Tasks(self._counter, self._spec.make_schedule(), inputs, targets, Messages())


class Calibrated(_Counted):
    """Layers with the times of a calibration."""

    def __init__(self, spec: RunSpec, model: Model, device: str, calibration: Calibration) -> None:
        super().__init__(spec, model, device)
        if spec.memory is not None:
            raise ValueError(
                f"memory = {spec.memory}: a calibration is cut to no memory; leave it out, or take "
                "a profile"
            )
        if len(calibration.update) != len(model.layers):
            raise ValueError(
                f"calibration: is of {len(calibration.update)} layers, {spec.model} has L = "
                f"{len(model.layers)} here; give the model and arguments that were calibrated"
            )
        self._calibration = calibration
        self.link = spec.link or calibration.link

    def examples(self) -> int:
        """Examples in a micro-batch."""
        return sizes(self._spec.N, self._spec.M)[0]

    def layers(self, n: int) -> Profile:
        """Seconds of each layer for a micro-batch of n examples while all processes compute."""
        checkpoint = self._spec.checkpoint
        # A stage of one layer costs what the layer does.
        stages = self._calibration.stages([1] * len(self._calibration.update), n, checkpoint)
        recompute = stages.recompute if checkpoint != "never" else (0.0,) * stages.stages
        return Profile(
            stages.forward,
            recompute,
            stages.backward,
            tuple(round(size) for size in stages.activations),
            tuple(round(size) for size in stages.gradients),
        )

    def costs(self, n: int, counts: Sequence[int], link: LinkSpeed) -> StageCosts:
        """Costs of the stages, each as fast as the stages that compute at the same time let it."""
        spec, calibration = self._spec, self._calibration
        return settle(
            spec.make_schedule(),
            lambda together: calibration.stages(counts, n, spec.checkpoint, together, link),
        )


class Roofline(_Counted):
    """Layers with times from a device's profile: FLOPs and bytes over its rates."""

    def __init__(self, spec: RunSpec, model: Model, device: str) -> None:
        assert spec.profile is not None
        super().__init__(spec, model, device)
        self._device = devices.load(expanded(spec.profile))
        self.memory = self._device.memory.value
        self.link = spec.link or self._device.link

    def examples(self) -> int:
        """Examples in a micro-batch: N / M or, with a memory, the most with which stages fit."""
        most = sizes(self._spec.N, self._spec.M)[0]
        if self._spec.memory is None:
            return most
        tries = _sizes(most)
        fitting = bisect_left(tries, True, key=lambda n: not self._fits(n))
        return tries[fitting - 1] if fitting else 0

    def _fits(self, n: int) -> bool:
        assert self._spec.memory is not None
        return max(self.peaks(n, self.cut(self.layers(n), self.link))) <= self._spec.memory

    def layers(self, n: int) -> Profile:
        """Seconds of each layer for a micro-batch of n examples."""
        return self._profile(self._times(n, self._device))

    def _times(self, n: int, device: Device, *, folded: bool = False) -> Times:
        inputs, targets = (micro_batch(few, n) for few in self._few)
        layers = roofline.layers(self._counter, inputs, device, folded=folded)
        return layers, roofline.head(self._counter, inputs, targets, device)

    def _profile(self, times: Times, counted: Counted = _ALL) -> Profile:
        return roofline.profile(
            *times,
            terms=counted.terms,
            ends=counted.ends,
            recompute=self._spec.checkpoint != "never",
        )

    def costs(self, n: int, counts: Sequence[int], link: LinkSpeed) -> StageCosts:
        times = self._times(n, self._device)
        updates = [time.update for time in times[0]]
        return StageCosts.of(
            self._profile(times), counts, link, updates, self._device.setup_s.value
        )

    def cumulative_causes(self, n: int) -> dict[str, float]:
        """Cause -> seconds of the step with it and all before it, each with its best cut."""
        times = self._times(n, self._device)
        return {
            cause: self._step(times, self._device, counted) for cause, counted in CAUSES.items()
        }

    def bounds(self, n: int) -> dict[str, float]:
        """Bound -> seconds of the step with its best cut."""
        return {
            name: self._step(
                self._times(n, self._device, folded=counted.folded), self._device, counted
            )
            for name, counted in BOUNDS.items()
        }

    def sensitivity(self, n: int) -> dict[str, dict[str, Any]]:
        """Figure -> its basis, and seconds of the step under each factor, with its best cut.

        A link that the spec gives is no figure of the device.
        """
        dependence: dict[str, dict[str, Any]] = {}
        for name in FIGURES:
            if self._spec.link is not None and name.startswith("link"):
                continue
            dependence[name] = {"basis": getattr(self._device, name).basis}
            for word, factor in FACTORS.items():
                scaled = self._device.with_scaled(name, factor)
                dependence[name][word] = self._step(self._times(n, scaled), scaled, _ALL)
        return dependence

    def _step(self, times: Times, device: Device, counted: Counted) -> float:
        layers = self._profile(times, counted)
        link = self._spec.link or device.link
        if not counted.link:
            link = FREE
        costs = StageCosts.of(
            layers,
            self.cut(layers, link),
            link,
            [time.update for time in times[0]] if counted.update else (),
            device.setup_s.value if counted.setup else 0.0,
        )
        return simulate(self._spec.make_schedule(), costs).step_time


def _sizes(most: int) -> list[int]:
    """Sizes of micro-batches to try for memory: 1, 2, 3, 4, 6, 8, 12, ... and the largest."""
    tries = {most}
    power = 1
    while power <= most:
        tries |= {power, min(most, power * 3 // 2)}
        power *= 2
    return sorted(tries)


def counted_costs(counter: Counter, inputs: Tree) -> dict[str, list[int]]:
    """What stages can be cut by without a clock: parameters and FLOPs of each layer's forward."""
    layers = [counter.cost(index, inputs) for index in range(len(counter))]
    return {
        "parameters": [layer.parameters for layer in layers],
        "flops": [sum(op.flops for op in layer.forward) for layer in layers],
    }


def _cut(
    spec: RunSpec, layers: Profile, link: LinkSpeed, counted: Mapping[str, Sequence[int]]
) -> tuple[int, ...]:
    """Layers of each stage, cut as `repro.gpipe.Pipeline` cuts with measured times.

    Args:
        spec: says by what stages are cut.
        layers: seconds of each layer.
        link: between stages.
        counted: what was counted of each layer, see `counted_costs`; without it all are alike.
    """
    L = len(layers.forward)
    spec.fit(L)
    if isinstance(spec.balance, tuple):
        return spec.balance
    if spec.balance == "time":
        cost = layers.cost(link)
    else:
        cost = additive(counted.get(spec.balance, [1] * L))
    return tuple(PARTITIONERS[spec.partitioner or SMALLEST_LARGEST](cost, L, spec.total_stages))
