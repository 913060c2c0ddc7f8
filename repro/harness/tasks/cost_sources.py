"""Where a cost model has the seconds of a model's layers from: a device's profile, timing here, or layers that wait."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, Protocol

from repro.costs import Counter, Device, LayerTime, Messages, Task, mini_batch, roofline
from repro.costs import device as devices
from repro.costs.stage_memory import micro_batch, walk
from repro.gpipe import make_schedule
from repro.gpipe.core.microbatch import sizes
from repro.gpipe.partition.layer_profile import LinkSpeed, Profile
from repro.gpipe.partition.partition import additive, smallest_largest
from repro.harness.spec import Link, RunSpec
from repro.harness.tasks.optimizers import OPTIMIZERS
from repro.io.redact import expanded
from repro.models import Model
from repro.models.timed import TimedLayer
from repro.simulate import FREE, Calibration, StageCosts, settle, simulate

# What a step is put together from, one cause after the other: terms of the layers, the model's
# ends, the link.
RUNGS: dict[str, tuple[tuple[str, ...], bool, bool]] = {
    "imbalance": (("matmul",), False, False),
    "ends": (("matmul",), True, False),
    "memory-bound": (("matmul", "memory"), True, False),
    "launch": (roofline.TERMS, True, False),
    "transfer": (roofline.TERMS, True, True),
}
# Of a device, what a step is made to depend on: each in turn by each of the factors.
FIGURES = (
    "matmul_flops",
    "other_flops",
    "bytes_per_second",
    "launch_s",
    "link_bytes_per_second",
    "link_latency_s",
)
FACTORS = {"halved": 0.5, "doubled": 2.0}
_last: Counter | None = None  # of this process: whose traces the next one uses


Times = tuple[Sequence[LayerTime], LayerTime]  # of layers, of the loss


def link_speed(link: Link | None) -> LinkSpeed | None:
    """A spec's link as the library takes it."""
    return LinkSpeed(link.latency, link.bytes_per_second, link.overlap) if link else None


class Source(Protocol):
    """What a model's layers cost.

    Attributes:
        link: between two stages.
    """

    link: LinkSpeed

    def examples(self) -> int:
        """In a micro-batch; 0 where not even one fits into the spec's memory."""
        ...

    def layers(self, n: int) -> Profile:
        """What each layer takes for a micro-batch of n examples."""
        ...

    def cut(self, layers: Profile, link: LinkSpeed) -> tuple[int, ...]:
        """Layers of each stage."""
        ...

    def costs(self, n: int, counts: Sequence[int], link: LinkSpeed) -> StageCosts:
        """Of the stages."""
        ...

    def rungs(self, n: int, /) -> dict[str, float]:
        """Seconds of the step with one cause after the other, where causes are known."""
        ...

    def sensitivity(self, n: int, /) -> dict[str, dict[str, Any]]:
        """What the step depends on, where a device says it: figure -> its basis, and seconds under `FACTORS`."""
        ...

    def peaks(self, n: int, counts: Sequence[int], /) -> list[int] | None:
        """Counted bytes of each stage at its peak, where they are known."""
        ...


class Waits:
    """Layers that say themselves what they take."""

    def __init__(self, spec: RunSpec, model: Model) -> None:
        self._spec = spec
        made = [layer() for layer in model.layers if callable(layer)]
        self._layers = [layer for layer in made if isinstance(layer, TimedLayer)]
        self.link = link_speed(spec.link) or FREE

    def examples(self) -> int:
        """In a micro-batch."""
        return sizes(self._spec.N, self._spec.M)[0]

    def layers(self, n: int) -> Profile:
        """What each layer takes, whatever n is, and what it sends."""
        forward = tuple(layer.forward_s for layer in self._layers)
        sent = tuple(4 * layer.elements * n for layer in self._layers[:-1])
        backward = tuple(layer.backward_s for layer in self._layers)
        again = forward if self._spec.checkpoint != "never" else (0.0,) * len(forward)
        return Profile(forward, again, backward, sent, sent)

    def cut(self, layers: Profile, link: LinkSpeed) -> tuple[int, ...]:
        """Layers of each stage."""
        return _cut(self._spec, layers, link, [1] * len(layers.forward))

    def costs(self, n: int, counts: Sequence[int], link: LinkSpeed) -> StageCosts:
        """Of the stages."""
        updates = [vars(layer.weight)["update_s"] for layer in self._layers]
        return StageCosts.of(self.layers(n), counts, link, updates)

    def rungs(self, _n: int) -> dict[str, float]:
        """Nothing is known of causes."""
        return {}

    def sensitivity(self, _n: int) -> dict[str, dict[str, Any]]:
        """There is no device."""
        return {}

    def peaks(self, _n: int, _counts: Sequence[int]) -> list[int] | None:
        """Nothing is known of memory."""
        return None


class _Counts:
    """A model's memory and parameters, counted."""

    def __init__(self, spec: RunSpec, model: Model, device: str) -> None:
        global _last
        optimizer = partial(OPTIMIZERS[spec.optimizer], lr=spec.lr)
        _last = self._counter = Counter(model.layers, model.loss, optimizer, _last, device)
        self._spec = spec
        self._few = model.batch(1, 0)

    def cut(self, layers: Profile, link: LinkSpeed) -> tuple[int, ...]:
        """Layers of each stage."""
        inputs = micro_batch(self._few[0], 1)
        costs = [
            self._counter.cost(index, inputs).parameters for index in range(len(self._counter))
        ]
        return _cut(self._spec, layers, link, costs)

    def peaks(self, n: int, counts: Sequence[int]) -> list[int]:
        """Counted bytes of each stage at its peak."""
        spec = self._spec
        schedule = make_schedule(spec.schedule, spec.K, spec.M, spec.checkpoint)
        inputs, targets = (mini_batch(few, n * spec.M) for few in self._few)
        ends = [0, *accumulate(counts)]
        tasks = [
            Task(schedule, j, range(a, b), inputs, targets, Messages())
            for j, (a, b) in enumerate(pairwise(ends))
        ]
        return [walk(self._counter, task).total for task in tasks]


class Calibrated(_Counts):
    """Layers that take what they took where they were timed."""

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
        self.link = link_speed(spec.link) or calibration.link

    def examples(self) -> int:
        """In a micro-batch."""
        return sizes(self._spec.N, self._spec.M)[0]

    def layers(self, n: int) -> Profile:
        """What each layer takes for a micro-batch of n examples while all processes compute, as the engine cuts."""
        one = self._calibration.stages(
            [1] * len(self._calibration.update), n, self._spec.checkpoint
        )
        again = one.recompute if self._spec.checkpoint != "never" else (0.0,) * one.stages
        sent = (
            tuple(round(size) for size in one.activations),
            tuple(round(size) for size in one.gradients),
        )
        return Profile(one.forward, again, one.backward, *sent)

    def costs(self, n: int, counts: Sequence[int], link: LinkSpeed) -> StageCosts:
        """Of the stages, each as fast as its neighbours leave it."""
        spec, found = self._spec, replace(self._calibration, link=link)
        schedule = make_schedule(spec.schedule, spec.K, spec.M, spec.checkpoint)
        return settle(schedule, lambda together: found.stages(counts, n, spec.checkpoint, together))

    def rungs(self, _n: int) -> dict[str, float]:
        """Nothing is known of causes."""
        return {}

    def sensitivity(self, _n: int) -> dict[str, dict[str, Any]]:
        """There is no device."""
        return {}


class Roofline(_Counts):
    """Layers that compute, on a device."""

    def __init__(self, spec: RunSpec, model: Model, device: str) -> None:
        assert spec.profile is not None
        super().__init__(spec, model, device)
        self._device = devices.load(expanded(spec.profile))
        self.link = link_speed(spec.link) or self._device.link

    def examples(self) -> int:
        """In a micro-batch: with a memory the most, up to N / M, with which every stage stays within it; 0 if none."""
        most = sizes(self._spec.N, self._spec.M)[0]
        if self._spec.memory is None:
            return most
        tries = [n for n in _sizes(most) if n <= most]
        low, high = 0, len(tries) + 1  # of as many of them as fit
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._fits(tries[middle - 1]) else (low, middle)
        return tries[low - 1] if low else 0

    def _fits(self, n: int) -> bool:
        assert self._spec.memory is not None
        return max(self.peaks(n, self.cut(self.layers(n), self.link))) <= self._spec.memory

    def layers(self, n: int) -> Profile:
        """What each layer takes for a micro-batch of n examples."""
        return self._profile(self._times(n, self._device))

    def _times(self, n: int, device: Device) -> Times:
        """Layers and loss."""
        inputs, targets = (micro_batch(few, n) for few in self._few)
        layers = roofline.layers(self._counter, inputs, device)
        return layers, roofline.head(self._counter, inputs, targets, device)

    def _profile(
        self, times: Times, terms: Sequence[str] = roofline.TERMS, *, ends: bool = True
    ) -> Profile:
        return roofline.profile(
            *times, terms=terms, ends=ends, recompute=self._spec.checkpoint != "never"
        )

    def costs(self, n: int, counts: Sequence[int], link: LinkSpeed) -> StageCosts:
        """Of the stages."""
        return self._costs(self._times(n, self._device), counts, link)

    def _costs(self, times: Times, counts: Sequence[int], link: LinkSpeed) -> StageCosts:
        return StageCosts.of(self._profile(times), counts, link, [time.update for time in times[0]])

    def rungs(self, n: int) -> dict[str, float]:
        """Seconds of the step with one cause after the other; each with the best cut for what counts."""
        times, found = self._times(n, self._device), {}
        for name, (terms, ends, linked) in RUNGS.items():
            layers, link = self._profile(times, terms, ends=ends), self.link if linked else FREE
            found[name] = self._step(StageCosts.of(layers, self.cut(layers, link), link))
        return found

    def sensitivity(self, n: int) -> dict[str, dict[str, Any]]:
        """What the step depends on: figure -> its basis, and seconds under `FACTORS`, each with its best cut.

        A link that the spec gives is no figure of the device.
        """
        figures = [
            name for name in FIGURES if self._spec.link is None or not name.startswith("link")
        ]
        return {
            name: {"basis": getattr(self._device, name).basis}
            | {
                word: self._altered(n, self._device.with_scaled(name, factor))
                for word, factor in FACTORS.items()
            }
            for name in figures
        }

    def _altered(self, n: int, device: Device) -> float:
        """Seconds of the step on another device."""
        times, link = self._times(n, device), link_speed(self._spec.link) or device.link
        return self._step(self._costs(times, self.cut(self._profile(times), link), link))

    def _step(self, costs: StageCosts) -> float:
        schedule = make_schedule(
            self._spec.schedule, self._spec.K, self._spec.M, self._spec.checkpoint
        )
        return simulate(schedule, costs).step_time


def _sizes(most: int) -> list[int]:
    """Micro-batches that are tried for memory: 1, 2, 3, 4, 6, 8, 12, ... and the largest."""
    found = {most}
    power = 1
    while power <= most:
        found |= {power, min(most, power * 3 // 2)}
        power *= 2
    return sorted(found - {0})


def _cut(
    spec: RunSpec, layers: Profile, link: LinkSpeed, parameters: Sequence[int]
) -> tuple[int, ...]:
    """Layers of each stage, as `repro.gpipe.Pipeline` would cut them had it measured these times."""
    L = len(layers.forward)
    spec.fit(L)
    if isinstance(spec.balance, tuple):
        return spec.balance
    costs = {
        "time": layers.cost(link),
        "parameters": additive(parameters),
        "uniform": additive([1] * L),
    }
    return tuple(smallest_largest(costs[spec.balance], L, spec.K))
